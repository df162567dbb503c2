"""Read files of published tables in JSON, TOML, CSV, Markdown, HTML, and verification cards.

file -> documents of one form: fields that hold for all rows, and ``points``, the rows by heading

``predict`` and ``verify table`` both use this reader, so that they accept the same files.
"""

import csv
import io
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from harness.base.errors import SpecError
from harness.features.foresight.published import cards
from harness.features.foresight.published.headings import field_name

#: Value of the field ``schema`` in a JSON file with several tables.
SCHEMA = "published_scaling/1"
#: A heading that is the size of a column: ``8``, ``8 GPUs``, ``128x GB200 GPUs``, ``2 nodes``.
_SIZE = re.compile(
    r"(\d+)\s*x?\s*(?:[\w-]+\s+)?(gpus?|tpus?|npus?|gcds?|chips?|devices?|ranks?|nodes?)?", re.I
)


def documents(path: Path, fix: str) -> Sequence[Any]:
    """Return the tables of a file, in its order.

    A document that is not an object or has no rows is left to the reader of tables, so that one bad
    table does not affect the others. Raise SpecError if the file cannot be read or is not a file of
    tables. ``fix`` is the command that this error suggests.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"cannot be read: {error}",
            where=str(path),
            expected="a table in JSON, TOML, CSV, Markdown or HTML",
            fix=fix,
        ) from None
    if path.suffix == ".toml":
        return [{"id": path.stem, **_of_toml(content, path)}]
    if path.suffix not in (".json", ".md", ".toml") and (known := _log_of(content)):
        name, expected, command = known
        raise SpecError(f"this is {name}", where=str(path), expected=expected, fix=command)
    if path.suffix in (".yaml", ".yml"):
        return _of_card(content, path)
    if path.suffix == ".json" or content.lstrip().startswith(("{", "[")):
        return _of_json(content, path, fix)
    tables = [] if path.suffix == ".csv" else _of_text(content)
    if not tables and path.suffix not in (".md", ".html", ".htm"):
        tables = [_of_csv(content)]
    if not tables:
        return [{"id": path.stem, "points": []}]
    named = [name or f"{path.stem}, table {i}" for i, (name, _) in enumerate(tables, 1)]
    ids = named if len(tables) > 1 else [path.stem]
    return [{"id": id_, "points": rows} for id_, (_, rows) in zip(ids, tables, strict=True)]


#: Logs that are not tables: a pattern of their text, their name, what is expected, and a command.
_TABLE = "a table with one row for each number of GPUs"
_LOGS = (
    (r":::MLLOG", "a result log of MLPerf", _TABLE, "scaleproof predict --help"),
    (
        r"elapsed time per iteration|consumed samples:|\A\[\d{4}-\d\d-\d\d \d\d:\d\d"
        r"|\[INFO\]|INFO:|DEBUG:|WARNING:root",
        "a log of a training (Megatron, DeepSpeed or others)",
        _TABLE,
        "scaleproof predict --help",
    ),
    (r"nThread \d+ nGpus|out-of-place\s+in-place", "an output of nccl-tests",
     "a contract's report, which reads it", "scaleproof accept report --help"),
    (r'\A\s*\{[^\n]*\}\s*\n\s*\{', "one JSON object a line", "one JSON document or a CSV file",
     "scaleproof predict --help"),
)  # fmt: skip


def _log_of(content: str) -> tuple[str, str, str] | None:
    """Return the name of a log, what is expected instead, and a command; None for other texts."""
    for written, name, expected, fix in _LOGS:
        if re.search(written, content):
            return name, expected, fix
    return None


def cell_value(cell: Any) -> Any:
    """Return the number in a cell: 1234 for ``1,234``, 97.6 for ``97.6 %``.

    Other text and other values are returned unchanged.
    """
    if not isinstance(cell, str):
        return cell
    bare = cell.strip()
    match = re.fullmatch(
        r"(-?\d[\d,']*(\.\d+)?(e[+-]?\d+)?)\s*([%x×]|[a-z]+/s(ec)?)?", bare.lower()
    )
    if match is None:
        return bare or None
    number = float(re.sub(r"[,']", "", match[1]))
    return int(number) if number.is_integer() else number


def _of_toml(content: str, path: Path) -> Mapping[str, Any]:
    expected = "[[row]] tables"
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(
            f"not valid TOML: {error}", where=str(path), expected=expected, fix=f"edit {path}"
        ) from None
    rows = document.pop("row", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError(
            "row is not an array of tables", where=str(path), expected=expected, fix=f"edit {path}"
        )
    return {**document, "points": rows}


#: A reader that is written in C, if there is one: the other takes minutes for deep documents.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Largest number of levels of a YAML document.
_DEPTH = 100


def _refuse_growing(content: str) -> None:
    """Raise YAMLError for deep levels, and for aliases, which can stand for gigabytes."""
    depth = 0
    for event in yaml.parse(content, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name)")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise yaml.YAMLError(f"it has more than {_DEPTH} levels")


def _of_card(content: str, path: Path) -> Sequence[Any]:
    """Return the scaling sweeps of a verification card."""
    expected = f"a verification card with items.{cards.ITEM}"
    fix = f"scaleproof verify table {path.stem}.csv"
    try:
        _refuse_growing(content)
        card = yaml.load(content, Loader=_LOADER)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise SpecError(
            f"not valid YAML: {reason}", where=str(path), expected=expected, fix=fix
        ) from None
    sweeps = list(cards.tables(card)) if isinstance(card, Mapping) else []
    if not sweeps:
        raise SpecError("no scaling sweep", where=str(path), expected=expected, fix=fix)
    return sweeps


def _of_csv(content: str) -> tuple[str, list[dict[str, str]]]:
    """Return the rows of a CSV file, which have no name."""
    lines = csv.DictReader(io.StringIO(content), skipinitialspace=True)
    return "", [{key: value or "" for key, value in row.items() if key} for row in lines]


def _of_text(content: str) -> list[tuple[str, list[dict[str, str]]]]:
    """Return the name and the rows of each Markdown or HTML table in a text.

    A Markdown table consists of consecutive lines that begin with a bar. A table has the name of
    the heading above it. Several tables below one heading are numbered.
    """
    tables: list[tuple[str, list[dict[str, str]]]] = []
    heading = ""
    texts = content.splitlines()
    barred_lines = _table_lines(texts)
    for barred, numbers in itertools.groupby(range(len(texts)), barred_lines.__contains__):
        lines = [texts[number].strip() for number in numbers]
        if barred:
            tables.append((heading, _rows(_of_markdown(lines))))
            continue
        reader = _HtmlTables(heading)
        reader.feed("\n".join(lines))
        tables += [(name, _rows(cells)) for name, cells in reader.tables if cells]
        heading = reader.heading
    count = Counter(name for name, _ in tables)
    seen = Counter[str]()
    numbered = []
    for name, rows in tables:
        seen[name] += 1
        several = name and count[name] > 1
        numbered.append((f"{name} ({seen[name]})" if several else name, rows))
    return numbered


def _table_lines(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines that belong to Markdown tables.

    They begin with a bar, or have bars and are below or above a line of dashes and bars.
    """
    of_tables = {number for number, line in enumerate(lines) if line.strip()[:1] == "|"}
    for number, line in enumerate(lines):
        if "|" in line and re.fullmatch(r"[\s|:-]*-{2,}[\s|:-]*", line):
            below = itertools.takewhile(lambda n: "|" in lines[n], range(number, len(lines)))
            of_tables |= {max(0, number - 1), *below}
    return of_tables


class _HtmlTables(HTMLParser):
    """Read the tables of HTML: ``tables`` holds the heading above each and its cells by row.

    ``heading`` is the last heading, in HTML or in Markdown. A cell that spans several columns is
    repeated in each of them.
    """

    def __init__(self, heading: str) -> None:
        super().__init__()
        self.heading = heading
        self.tables: list[tuple[str, list[list[str]]]] = []
        self._cell: list[str] | None = None
        self._span = 1
        self._named = False  # whether the text belongs to a heading

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._named = bool(re.fullmatch(r"h[1-6]|caption", tag))
        if tag == "table":
            self.tables.append((self.heading, []))
        elif tag == "tr" and self.tables:
            self.tables[-1][1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1][1]:
            self._cell = []
            span = dict(attrs).get("colspan") or "1"
            self._span = int(span) if span.isdecimal() else 1

    def handle_endtag(self, tag: str) -> None:
        self._named = False
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][1][-1].extend([" ".join("".join(self._cell).split())] * self._span)
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        elif self._named and data.strip():
            self.heading = data.strip()
        for line in data.splitlines() if self._cell is None else ():
            if re.match(r"#{1,6} |\*\*", line.strip()):
                self.heading = line.strip().strip("#* ")


def _of_markdown(block: Sequence[str]) -> list[list[str]]:
    """Return the cells of a Markdown table by row, without the line below the headings."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block]
    return [cells for cells in lines if not all(re.fullmatch(r":?-+:?", c) for c in cells)]


def _rows(cells: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return the rows of a table by heading.

    If the headings are sizes ("1 GPU", "8 GPUs"), the table is transposed, so that each size
    becomes a row.
    """
    headings = cells[0] if cells else ()
    if not headings:
        return []
    sizes = [_SIZE.fullmatch(name.strip("*_` ")) for name in headings[1:]]
    of_numbers = field_name(headings[0]) in ("gpus", "nodes")
    known = [size for size in sizes if size is not None and (size[2] or of_numbers)]
    if len(known) < 2 or len(known) < len(sizes):
        return [dict(zip(headings, row, strict=False)) for row in cells[1:]]
    unit = known[0][2] or headings[0]
    filled = [[*row, *[""] * len(headings)][: len(headings)] for row in cells[1:]]
    names, *values = zip(*filled, strict=True) if filled else [()] * len(headings)
    return [
        {f"{unit.rstrip('s')}s": size[1], **dict(zip(names, of_size, strict=True))}
        for size, of_size in zip(known, values, strict=True)
    ]


def _of_json(content: str, path: Path, fix: str) -> Sequence[Any]:
    format_it = f"python -m json.tool {path}"
    try:
        document = json.loads(content)
    except ValueError as error:
        raise SpecError(
            f"not valid JSON: {error}", where=str(path), expected="one JSON document", fix=format_it
        ) from None
    if isinstance(document, dict) and "points" in document:
        return [document]
    tables = document.get("tables") if isinstance(document, dict) else None
    if not isinstance(tables, list) or not tables:
        raise SpecError(
            "no tables",
            where=str(path),
            expected='{"schema": ..., "tables": [...]}',
            fix=format_it,
        )
    if (schema := document.get("schema", SCHEMA)) != SCHEMA:
        raise SpecError(f"schema {schema!r}", where=str(path), expected=SCHEMA, fix=fix)
    return tables
