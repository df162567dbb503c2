"""Read files of published tables in JSON, TOML, CSV or Markdown.

file -> documents of one form: fields that hold for all rows, and ``points``, the rows by heading

``predict`` and ``audit`` both use this reader, so that they accept the same files.
"""

import csv
import io
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import SpecError

#: Value of the field ``schema`` in a JSON file with several tables.
SCHEMA = "published_scaling/1"


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
            expected="a table in JSON, TOML, CSV or Markdown",
            fix=fix,
        ) from None
    if path.suffix == ".toml":
        return [{"id": path.stem, **_of_toml(content, path)}]
    if path.suffix == ".json" or content.lstrip().startswith(("{", "[")):
        return _of_json(content, path, fix)
    tables = _of_markdown_file(content) or ([] if path.suffix == ".md" else [_of_csv(content)])
    if not tables:
        return [{"id": path.stem, "points": []}]
    named = [name or f"{path.stem}, table {i}" for i, (name, _) in enumerate(tables, 1)]
    ids = named if len(tables) > 1 else [path.stem]
    return [{"id": id_, "points": rows} for id_, (_, rows) in zip(ids, tables, strict=True)]


def cell_value(cell: Any) -> Any:
    """Return the number in a cell: 1234 for ``1,234``, 97.6 for ``97.6 %``.

    Other text and other values are returned unchanged.
    """
    if not isinstance(cell, str):
        return cell
    bare = cell.strip()
    if not re.fullmatch(r"-?\d[\d,']*(\.\d+)?(e[+-]?\d+)?\s*[%x]?", bare.lower()):
        return bare or None
    number = float(re.sub(r"[,'%xX\s]", "", bare))
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


def _of_csv(content: str) -> tuple[str, list[dict[str, str]]]:
    """Return the rows of a CSV file, which have no name."""
    lines = csv.DictReader(io.StringIO(content), skipinitialspace=True)
    return "", [{key: value or "" for key, value in row.items() if key} for row in lines]


def _of_markdown_file(content: str) -> list[tuple[str, list[dict[str, str]]]]:
    """Return the name and the rows of each Markdown table in a text.

    A Markdown table consists of consecutive lines that begin with a bar, and has the name of the
    heading above it. Several tables below one heading are numbered.
    """
    tables: list[tuple[str, list[dict[str, str]]]] = []
    heading = ""
    for barred, block in itertools.groupby(content.splitlines(), lambda x: x.strip()[:1] == "|"):
        lines = [line.strip() for line in block]
        if barred:
            tables.append((heading, _of_markdown(lines)))
        else:
            above = [line.strip("#* ") for line in lines if re.match(r"#{1,6} |\*\*", line)]
            heading = above[-1] if above else heading
    count = Counter(name for name, _ in tables)
    seen = Counter[str]()
    numbered = []
    for name, rows in tables:
        seen[name] += 1
        several = name and count[name] > 1
        numbered.append((f"{name} ({seen[name]})" if several else name, rows))
    return numbered


def _of_markdown(block: Sequence[str]) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block]
    rows = [cells for cells in lines if not all(re.fullmatch(r":?-+:?", c) for c in cells)]
    return [dict(zip(rows[0], cells, strict=False)) for cells in rows[1:]]


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
