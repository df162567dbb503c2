"""Plain text for terminals: columns that drop rather than truncate, colour that is never alone."""

import os
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Generic, TextIO, TypeVar

from harness.base.documents import Json
from harness.base.formatting import plain
from harness.cases import CaseSpec

Row = TypeVar("Row")

#: The words of statuses, and how they are painted: what only lists imports no record.
_COLORS = {
    "PASS": "32",
    "FAIL": "31;1",
    "ERROR": "31;1",
    "INCONCLUSIVE": "33",
    "RECORDED": "2",
    "SKIP": "2",
}


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its header, and a row's cell. The lowest ``keep`` goes first from a wide table.

    ``raw`` is the cell's value for programs, where its words are not.
    """

    header: str
    keep: int
    cell: Callable[[Row], str]
    left: bool = False
    raw: Callable[[Row], Json] | None = None


def number(
    header: str,
    keep: int,
    value: Callable[[Row], float | None],
    form: Callable[[float], str],
    none: str = "",
) -> Column[Row]:
    """A column of numbers; ``none`` stands where there is none."""

    def cell(row: Row) -> str:
        return none if (known := value(row)) is None else form(known)

    return Column(header, keep, cell, raw=value)


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[str]:
    """Aligned rows under a header; columns are dropped until the widest row fits ``width``.

    A cell of several lines goes on below, where the other cells of its row are empty.
    """
    cells = [[column.header for column in columns]]
    for row in rows:
        wrapped = [column.cell(row).split("\n") for column in columns]
        cells += map(list, zip_longest(*wrapped, fillvalue=""))
    columns_kept = list(range(len(columns)))
    while True:
        widths = {i: max(len(line[i]) for line in cells) for i in columns_kept}
        if sum(widths.values()) + 2 * len(columns_kept) <= width or len(columns_kept) <= 2:
            break
        columns_kept.remove(min(columns_kept, key=lambda i: columns[i].keep))
    left_aligned = {i for i in columns_kept if columns[i].left}
    lines = []
    for line in cells:
        parts = (
            line[i].ljust(widths[i]) if i in left_aligned else line[i].rjust(widths[i])
            for i in columns_kept
        )
        lines.append((" " + "  ".join(parts)).rstrip())
    return lines


def shortened(name: str, room: int) -> str:
    """A name that is too long without its middle: both ends say what it is."""
    if len(name) <= room:
        return name
    tail = (room - 1) // 2
    return f"{name[: room - 1 - tail]}…{name[len(name) - tail :]}"


def named(case: CaseSpec) -> str:
    """A case's family, and a line for each thing in which it differs from the default."""
    return "\n  +".join([case.family, *re.split(r"\+(?=[A-Za-z_])", case.extras)[1:]])


def rule(title: str, width: int, fill: str = "-") -> str:
    """A title in the middle of a line."""
    return f" {title} ".center(width, fill)


def wrap(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most ``width``, all but the first indented; words are never broken."""
    return textwrap.wrap(
        text,
        width=width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns() -> int:
    """The width to draw for: the terminal's, within 80 and 140."""
    return min(140, max(80, shutil.get_terminal_size((100, 24)).columns))


def shown(path: Path) -> Path:
    """A path relative to where the user stands, if it lies below."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path


def wants_color(stream: TextIO) -> bool:
    """Colour on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(line: str) -> str:
    """Colour the status words of a line; the words stay, so colour is never alone."""
    for status, code in _COLORS.items():
        line = re.sub(rf"(?<!\b0 )\b{status}\b", f"\033[{code}m{status}\033[0m", line)
    return line


def write(lines: Sequence[str], stream: TextIO) -> None:
    """Print lines, in colour where that is wanted, in characters that the stream has."""
    color = wants_color(stream)
    for line in map(plain, lines):
        put(stream, (paint(line) if color else line) + "\n")


def put(stream: TextIO, words: str) -> None:
    """Write what may have characters that the stream's encoding lacks: these become ``?``."""
    encoding = stream.encoding or "utf-8"
    stream.write(words.encode(encoding, "replace").decode(encoding))
