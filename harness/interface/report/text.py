"""Plain text for terminals: columns that drop rather than truncate, colour that is never alone."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from harness.record import Status

_COLORS = {
    Status.PASS: "32",
    Status.FAIL: "31;1",
    Status.ERROR: "31;1",
    Status.INCONCLUSIVE: "33",
    Status.RECORDED: "2",
    Status.SKIP: "2",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column. The one with the lowest ``keep`` goes first when the table is too wide."""

    header: str
    keep: int
    left: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Aligned rows under a header; columns are dropped until the widest row fits ``width``."""
    kept = list(range(len(columns)))
    while True:
        widths = {i: max(len(columns[i].header), *(len(r[i]) for r in rows)) for i in kept}
        if sum(widths.values()) + 2 * len(kept) <= width or len(kept) <= 2:
            break
        kept.remove(min(kept, key=lambda i: columns[i].keep))
    lines = []
    for cells in ([c.header for c in columns], *rows):
        parts = [
            cells[i].ljust(widths[i]) if columns[i].left else cells[i].rjust(widths[i])
            for i in kept
        ]
        lines.append((" " + "  ".join(parts)).rstrip())
    return lines


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
        line = re.sub(rf"\b{status}\b", f"\033[{code}m{status}\033[0m", line)
    return line


def write(lines: Sequence[str], stream: TextIO) -> None:
    """Print lines, in colour where that is wanted."""
    color = wants_color(stream)
    for line in lines:
        stream.write((paint(line) if color else line) + "\n")
