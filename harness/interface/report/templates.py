"""Templates of pages: those of a folder, and the style that all pages share."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from harness.base.numbers import rate, si
from harness.base.plain import still

SHARED = Path(__file__).parent


def _still(value: Any) -> Any:
    return still(value) if type(value) is str else value  # a Markup is ours


def templates(folder: Path) -> Environment:
    """The templates beside a page's code."""
    environment = Environment(
        loader=FileSystemLoader([folder, SHARED]),
        autoescape=True,
        trim_blocks=True,
        finalize=_still,
    )
    environment.filters |= {"rate": rate, "si": si}
    return environment
