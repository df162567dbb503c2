"""Collect the sections that features add to reports; one file serves every kind of report.

A module states ``SECTION`` in its head: title, anchor, the part of the page after which it
comes, and its place among the other sections. It has any of

    lines(run, width)   tables for a terminal
    remarks(run)        sentences after the verdicts
    html(run)           the body of the section on a page; empty if there is nothing to show
    data(run)           the data that a page embeds as JSON
"""

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from markupsafe import Markup

from harness.base.documents import Json
from harness.cases import heads
from harness.record import RunRecord


class ShownSection(NamedTuple):
    """A section of a page."""

    title: str
    anchor: str
    after: str
    body: Markup


def lines(run: RunRecord, width: int) -> list[str]:
    """Return the lines of all sections for a terminal, in the order of their places."""
    return [line for show in _each("lines") for line in show(run, width)]


def remarks(run: RunRecord) -> list[str]:
    """Return the remarks of all sections."""
    return [sentence for tell in _each("remarks") for sentence in tell(run)]


def shown(run: RunRecord) -> list[ShownSection]:
    """Return the sections of a page that have something to show."""
    bodies = ((module.SECTION, module.html(run)) for module in _modules() if _has(module, "html"))
    return [
        ShownSection(title=head["title"], anchor=head["anchor"], after=head["after"], body=body)
        for head, body in bodies
        if body
    ]


def data(run: RunRecord) -> Mapping[str, Json]:
    """Return the data of all sections that a page embeds."""
    return {name: value for read in _each("data") for name, value in read(run).items()}


def _modules() -> Sequence[ModuleType]:
    return sorted(heads.modules("SECTION"), key=lambda module: int(module.SECTION["place"]))


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name)


def _each(name: str) -> Iterator[Any]:
    return (getattr(module, name) for module in _modules() if _has(module, name))
