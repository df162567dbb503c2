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
    tables = _of_text(content)
    named = [f"{path.stem}, table {number}" for number in range(1, len(tables) + 1)]
    ids = named if len(tables) > 1 else [path.stem]
    return [{"id": id_, "points": rows} for id_, rows in zip(ids, tables, strict=True)]


def field_name(heading: str) -> str:
    """Return a heading for people as the name of a field in JSON tables.

    ``Step time (ms)`` becomes step_time_ms, and ``tokens/s/GPU`` becomes tokens_per_s_per_gpu. A
    single word is not changed.
    """
    if heading.isidentifier():
        return heading
    words = re.sub(r"[\[(](.*?)[\])]", r" \1 ", heading.strip().lower().replace("/", " per "))
    return re.sub(r"[^a-z0-9.]+", "_", words).strip("_")


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


def _of_text(content: str) -> list[list[dict[str, str]]]:
    """Return the rows of each Markdown table (consecutive lines that begin with a bar),
    or of CSV.
    """
    lines = [line.strip() for line in content.splitlines()]
    blocks = [
        list(block) for barred, block in itertools.groupby(lines, lambda x: x[:1] == "|") if barred
    ]
    if blocks:
        return [_of_markdown(block) for block in blocks]
    lines_of_csv = csv.DictReader(io.StringIO(content), skipinitialspace=True)
    return [[{key: value or "" for key, value in row.items() if key} for row in lines_of_csv]]


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
