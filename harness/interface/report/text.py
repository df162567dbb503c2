"""Format plain text for terminals.

Tables drop columns instead of truncating them, and colour never carries information alone.
"""

import os
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Generic, TextIO, TypeVar

from harness.base.documents import Json
from harness.base.formatting import plain
from harness.cases import CaseSpec
from harness.interface import options

Row = TypeVar("Row")
#: Smallest width of a column of sentences in characters. Narrower lines are hard to read.
PROSE_WIDTH = 28

#: ANSI codes of the statuses. The statuses are written out here because commands that only list
#: things must not import the record.
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
    """A column: its header and a function that returns the cell of a row.

    If a table is too wide, the column with the lowest ``keep`` is dropped first. The cells of a
    column with ``prose`` are sentences, which continue on further lines. ``raw`` returns the value
    of a cell for programs if the text of the cell is not suitable.
    """

    header: str
    keep: int
    cell: Callable[[Row], str]
    left: bool = False
    raw: Callable[[Row], Json] | None = None
    prose: bool = False


def number(
    header: str,
    keep: int,
    value: Callable[[Row], float | None],
    form: Callable[[float], str],
    none: str = "",
) -> Column[Row]:
    """Return a column of numbers. ``none`` is the cell of a row without a value."""

    def cell(row: Row) -> str:
        return none if (known := value(row)) is None else form(known)

    return Column(header, keep, cell, raw=value)


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[str]:
    """Return aligned rows under a header, without the columns that do not fit ``width``.

    A cell with several lines continues below, where the other cells of its row are empty.
    """
    cell_lines = [[column.cell(row).split("\n") for column in columns] for row in rows]
    columns_kept = list(range(len(columns)))
    longest = [
        max([len(column.header), *(len(line) for cells in cell_lines for line in cells[i])])
        for i, column in enumerate(columns)
    ]
    least = [
        min(wide, PROSE_WIDTH) if column.prose else wide
        for column, wide in zip(columns, longest, strict=True)
    ]
    while True:
        spare = width - sum(least[i] + 2 for i in columns_kept)
        if spare >= 0 or len(columns_kept) <= 2:
            break
        columns_kept.remove(min(columns_kept, key=lambda i: columns[i].keep))
    widths = {i: min(longest[i], least[i] + max(0, spare)) for i in columns_kept}
    cells = [[column.header for column in columns]]
    for row in cell_lines:
        wrapped = [
            [part for line in lines for part in wrap(line, widths[i], 0) or [""]]
            if columns[i].prose and i in widths
            else lines
            for i, lines in enumerate(row)
        ]
        cells += map(list, zip_longest(*wrapped, fillvalue=""))
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
    """Return a name of at most ``room`` characters.

    A longer name loses its middle, because both ends identify it.
    """
    if len(name) <= room:
        return name
    tail = (room - 1) // 2
    return f"{name[: room - 1 - tail]}…{name[len(name) - tail :]}"


def named(case: CaseSpec) -> str:
    """Return a case's family, and a line for each setting that differs from the default."""
    return "\n  +".join([case.family, *re.split(r"\+(?=[A-Za-z_])", case.extras)[1:]])


def rule(title: str, width: int, fill: str = "-") -> str:
    """Return a line with a title in the middle."""
    return f" {title} ".center(width, fill)


def wrap(text: str, width: int, indent: int) -> list[str]:
    """Return lines of at most ``width`` characters without breaking words.

    All lines except the first are indented.
    """
    return textwrap.wrap(
        text,
        width=width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


#: The beginning of a command in a sentence: after a colon, or at the start of the text.
_COMMAND = re.compile(r"(?:(?<=: )|\A)(?=(?:scaleproof|pytest|python|bash|asv|git|kubectl) )")


def wrap_command(text: str, width: int, indent: int) -> list[str]:
    """Return lines of a sentence that may end with a command, ``case by more ranks: pytest ...``.

    The command begins on a line of its own unless everything fits one line. Its lines end with a
    backslash where the shell has to continue, so that it can be copied. ``text`` begins with a
    label of ``indent`` characters.
    """
    label = text[:indent]
    words = text[indent:]
    if len(text) <= width or (start := _COMMAND.search(words)) is None:
        return wrap(text, width, indent)
    sentence = words[: start.start()].rstrip()
    command = words[start.start() :]
    lines = wrap(label + sentence, width, indent) if sentence else []
    first = " " * indent if sentence else label
    typed = wrap(first + command, width - 2, indent + 2)
    return [*lines, *(f"{line} \\" for line in typed[:-1]), typed[-1]]


def legend(meanings: Mapping[str, str], header: str) -> str:
    """Return the explanations of the columns that a table shows, ``head = meaning; ...``.

    ``header`` is the first line of the table. Marks of a head (``*``) do not count.
    """
    heads = {head.rstrip("*") for head in re.split(r"\s{2,}", header.strip())}
    shown = [f"{head} = {meaning}" for head, meaning in meanings.items() if head in heads]
    return "; ".join(shown)


def columns() -> int:
    """Return the terminal's width in characters, limited to 80 to 140."""
    return min(140, max(80, shutil.get_terminal_size((100, 24)).columns))


def shown(path: Path) -> Path:
    """Return a path relative to the working directory if it is inside of it."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path


def short_name(folder: Path) -> Path:
    """Return the identifier of a run that lies where commands look for it, otherwise its folder."""
    place = options.usual_results() / "runs"
    return Path(folder.name) if folder.parent.parent == place else folder


def wants_color(stream: TextIO) -> bool:
    """Return whether to print in colour: on a terminal, unless NO_COLOR is set.

    The variable is described at https://no-color.org.
    """
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(line: str) -> str:
    """Colour the status words of a line. The words remain, so colour is never the only sign."""
    for status, code in _COLORS.items():
        line = re.sub(rf"(?<!\b0 )\b{status}\b", f"\033[{code}m{status}\033[0m", line)
    return line


def write(lines: Sequence[str], stream: TextIO) -> None:
    """Print lines, in colour if the stream supports it."""
    color = wants_color(stream)
    for line in map(plain, lines):
        put(stream, (paint(line) if color else line) + "\n")


def put(stream: TextIO, words: str) -> None:
    """Write text; characters that the stream's encoding does not have become ``?``."""
    encoding = stream.encoding or "utf-8"
    stream.write(words.encode(encoding, "replace").decode(encoding))
