"""Load the templates of a page's folder, and the style that all pages use."""

import functools
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from harness.base.formatting import rate, si, still

SHARED = Path(__file__).parent


def _still(value: Any) -> Any:
    return still(value) if type(value) is str else value  # Markup is produced by this program.


def breakable(name: str) -> Markup:
    """Return a case's name as HTML that a browser may break only between its parts."""
    return Markup("<wbr>").join(
        escape(part) for part in re.split(r"(?<=[/@])|(?=[+])", still(name))
    )


@functools.cache
def templates(folder: Path) -> Environment:
    """Return the templates in a page's folder. They are compiled once, for any number of pages."""
    environment = Environment(
        loader=FileSystemLoader([folder, SHARED]),
        autoescape=True,
        trim_blocks=True,
        finalize=_still,
    )
    environment.filters |= {"rate": rate, "si": si, "breakable": breakable}
    return environment
