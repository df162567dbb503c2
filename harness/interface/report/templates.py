"""Templates of pages: those of a folder, and the style that all pages share."""

import functools
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from harness.base.formatting import rate, si, still

SHARED = Path(__file__).parent


def _still(value: Any) -> Any:
    return still(value) if type(value) is str else value  # a Markup is ours


def breakable(name: str) -> Markup:
    """A case's name that a browser may break where its parts meet, and nowhere else."""
    return Markup("<wbr>").join(
        escape(part) for part in re.split(r"(?<=[/@])|(?=[+])", still(name))
    )


@functools.cache
def templates(folder: Path) -> Environment:
    """The templates beside a page's code; each is compiled once, however many pages are made."""
    environment = Environment(
        loader=FileSystemLoader([folder, SHARED]),
        autoescape=True,
        trim_blocks=True,
        finalize=_still,
    )
    environment.filters |= {"rate": rate, "si": si, "breakable": breakable}
    return environment
