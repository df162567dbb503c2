"""A table of plans, as every kind of report shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.interface.report import text
from harness.interface.report.page.svg import Curve, chart
from harness.interface.report.tabled import Table


@dataclass(frozen=True, kw_only=True)
class TitledTable:
    """A table with its title, its notes, and the curves that a page draws of it."""

    title: str
    table: Table[Any]
    notes: Sequence[str] = ()
    curves: Sequence[Curve] = ()
    x_label: str = ""
    y_label: str = ""

    def lines(self, width: int) -> list[str]:
        """For a terminal."""
        notes = [line for note in self.notes for line in text.wrap(f" {note}", width, 3)]
        return [text.rule(self.title, width), *self.table.lines(width), *notes, ""]

    @property
    def html(self) -> Markup:
        return self.table.html(self.title)

    @property
    def drawn(self) -> Markup:
        """The chart of its curves, with a logarithmic axis; empty where it has none."""
        if not self.curves:
            return Markup("")
        return Markup(chart(self.curves, y_label=self.y_label, x_label=self.x_label, log=True))
