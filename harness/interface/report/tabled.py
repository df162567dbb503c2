"""Write one table in four forms: for terminals, pages, Markdown and other programs."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from markupsafe import Markup, escape

from harness.base.documents import Json
from harness.base.formatting import plain as one_line
from harness.interface.report import text
from harness.interface.report.page.svg import Curve, chart
from harness.interface.report.text import Column
from harness.record import Status

Row = TypeVar("Row")
_STATUS = frozenset(Status)
#: A spreadsheet would evaluate a cell as a formula if it starts with one of these characters.
_FORMULA = re.compile(r"\s*[=+\-@|%]")
_SPECIAL = re.compile("[&<>'\"]")
#: A character after which a browser may break a name.
_NAME_PART = re.compile(r"(?<=\w)([_/+@])(?=\w)")
#: A character that is written differently in HTML, or after which a name may break.
_CHANGED = re.compile("[&<>'\"\n_/+@]")


@dataclass(frozen=True, kw_only=True)
class Table(Generic[Row]):
    """A table: its columns and rows. Columns whose cells are all empty are not shown."""

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]

    @property
    def shown_columns(self) -> list[Column[Row]]:
        """The columns that have a cell with text."""
        return [column for column in self.columns if any(column.cell(row) for row in self.rows)]

    def lines(self, width: int) -> list[str]:
        """Return lines for a terminal; columns are dropped until the table fits ``width``."""
        return text.table(self.shown_columns, self.rows, width) if self.rows else []

    def html(self, name: str, ids: Sequence[str] = ()) -> Markup:
        """Return HTML for a page.

        Readers can sort the table by a column, so each cell has its value as an attribute. ``ids``
        are the anchors of the rows.
        """
        if not self.rows:
            return Markup("")
        columns = self.shown_columns
        head = "".join(
            f"<th{_aligned(column)}>{_escaped(column.header or 'result')}</th>"
            for column in columns
        )
        names = [f' id="{_escaped(anchor)}"' for anchor in ids] or [""] * len(self.rows)
        by_column = [_cells(column, self.rows) for column in columns]
        body = "\n".join(
            f"<tr{id_}>{''.join(cells)}</tr>"
            for id_, *cells in zip(names, *by_column, strict=False)
        )
        return Markup(  # All text that comes from the table is escaped.
            f'<div class="wide" tabindex="0" role="region" aria-label="{_escaped(name)}"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
        )

    def markdown(self) -> list[str]:
        """Return the table in Markdown, for the summary of a CI system."""
        columns = self.shown_columns
        lines = [
            [column.header for column in columns],
            ["---" if column.left else "---:" for column in columns],
        ]
        lines += [[harmless(column.cell(row)) for column in columns] for row in self.rows]
        return [f"| {' | '.join(cells)} |" for cells in lines]

    def records(self) -> list[dict[str, Json]]:
        """Return the rows for other programs, with values instead of text if a column has them."""
        columns = self.shown_columns  # Computed once, because it reads all rows.
        return [{column.header: plain(column, row) for column in columns} for row in self.rows]


def plain(column: Column[Row], row: Row) -> Json:
    """Return the value of a cell for programs."""
    return column.cell(row).replace("\n", " ") if column.raw is None else column.raw(row)


def written(rows: Sequence[Mapping[str, Json]]) -> list[str]:
    """Return rows as comma-separated values with a header.

    Every text is one line, and formulas are quoted as text.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [_separated(names), *(_separated([row.get(name) for name in names]) for row in rows)]


def _separated(cells: Sequence[Json]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(map(_quoted, cells))
    return stream.getvalue()


def _quoted(value: Json) -> Json:
    if not isinstance(value, str):
        return value
    line = one_line(value)
    return f"'{line}" if _FORMULA.match(line) and not _number(line) else line


def _number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def harmless(cell: str) -> str:
    """Return a cell that cannot end its column in Markdown and contains no HTML."""
    cell = cell.replace("\n", " ").replace("|", "\\|").replace("`", "'")
    return cell.replace("<", "&lt;").replace(">", "&gt;")


def _aligned(column: Column[Row]) -> str:
    return "" if column.left else ' class="n"'


def _escaped(words: str) -> str:
    """Return text as HTML. Most texts contain nothing to escape, so a regex is tried first."""
    return str(escape(words)) if _SPECIAL.search(words) else words


def _cells(column: Column[Row], rows: Sequence[Row]) -> list[str]:
    """Return a column's cells as HTML. This must be fast: a page has up to 10^5 cells."""
    aligned = "" if column.left else "n"
    cells = []
    for row in rows:
        words = column.cell(row)
        value = None if column.raw is None else column.raw(row)
        kinds = aligned
        first = words.partition(" ")[0]
        if first in _STATUS:
            kinds = f"{aligned} {first}" if aligned else first
        number = f' data-v="{value:.6g}"' if isinstance(value, int | float) else ""
        cells.append(f'<td class="{kinds}"{number}>{_marked_up(words)}</td>')
    return cells


def _marked_up(words: str) -> str:
    """Return text as HTML that may break within names. Most texts need no change."""
    if not _CHANGED.search(words):
        return words
    return _NAME_PART.sub(r"\1<wbr>", _escaped(words)).replace("\n", "<br>")


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
        """Return title, table and notes as lines for a terminal."""
        notes = [line for note in self.notes for line in text.wrap(f" {note}", width, 3)]
        return [text.rule(self.title, width), *self.table.lines(width), *notes, ""]

    @property
    def html(self) -> Markup:
        return self.table.html(self.title)

    @property
    def drawn(self) -> Markup:
        """The chart of the curves with a logarithmic axis, or empty HTML without curves."""
        if not self.curves:
            return Markup("")
        return Markup(chart(self.curves, y_label=self.y_label, x_label=self.x_label, log=True))
