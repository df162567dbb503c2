"""Sections: the parts of a report that features add, each with one file for every kind of report.

A module states ``SECTION`` in its head: title, anchor, after which part of the page it stands, and
its place among the others. It has any of

    lines(run, width)   tables for a terminal
    remarks(run)        sentences after the verdicts
    html(run)           what stands below its title on a page; empty where there is nothing
    data(run)           what a page embeds as JSON
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
    """The lines of all sections for a terminal, in their order."""
    return [line for show in _each("lines") for line in show(run, width)]


def remarks(run: RunRecord) -> list[str]:
    """Sentences of all sections."""
    return [sentence for tell in _each("remarks") for sentence in tell(run)]


def shown(run: RunRecord) -> list[ShownSection]:
    """The sections of a page that have something to show."""
    bodies = ((module.SECTION, module.html(run)) for module in _modules() if _has(module, "html"))
    return [
        ShownSection(title=head["title"], anchor=head["anchor"], after=head["after"], body=body)
        for head, body in bodies
        if body
    ]


def data(run: RunRecord) -> Mapping[str, Json]:
    """The data that a page embeds, of all sections."""
    return {name: value for read in _each("data") for name, value in read(run).items()}


def _modules() -> Sequence[ModuleType]:
    return sorted(heads.modules("SECTION"), key=lambda module: int(module.SECTION["place"]))


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name)


def _each(name: str) -> Iterator[Any]:
    return (getattr(module, name) for module in _modules() if _has(module, name))
