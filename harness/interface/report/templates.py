"""Templates of pages: those of a folder, and the style that all pages share."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from harness.base.numbers import rate, si

SHARED = Path(__file__).parent


def templates(folder: Path) -> Environment:
    """The templates beside a page's code."""
    environment = Environment(
        loader=FileSystemLoader([folder, SHARED]), autoescape=True, trim_blocks=True
    )
    environment.filters |= {"rate": rate, "si": si}
    return environment
