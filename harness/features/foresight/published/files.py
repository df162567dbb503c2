"""Files of published tables: one reader for JSON, TOML, CSV and Markdown.

file -> documents of one form: what is stated of all rows, and ``points``, the rows by heading.
``predict`` and ``audit`` both begin here, so that what one of them reads, the other reads as well.
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

#: What a JSON file of several tables says of itself.
SCHEMA = "published_scaling/1"


def documents(path: Path, fix: str) -> Sequence[Any]:
    """The tables of a file, in its order. A document that is no object, or has no rows, is left to
    the reader of tables, so that one bad table leaves the others.

    SpecError: the file cannot be read, or is no file of tables; ``fix`` is a command that works.
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
    """``Step time (ms)`` as step_time_ms, ``tokens/s/GPU`` as tokens_per_s_per_gpu: headings that
    people read, as the fields of JSON tables are called. One word stays as it is.
    """
    if heading.isidentifier():
        return heading
    words = re.sub(r"[\[(](.*?)[\])]", r" \1 ", heading.strip().lower().replace("/", " per "))
    return re.sub(r"[^a-z0-9.]+", "_", words).strip("_")


def cell_value(cell: Any) -> Any:
    """``1,234`` as 1234, ``97.6 %`` as 97.6; text that is no number, and other values, as is."""
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
        raise SpecError("row is no table", where=str(path), expected=expected, fix=f"edit {path}")
    return {**document, "points": rows}


def _of_text(content: str) -> list[list[dict[str, str]]]:
    """The rows of each table: of lines that begin with a bar, one after the other; else of CSV."""
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
