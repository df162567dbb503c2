"""A strict TOML reader that reports all mistakes of a file together.

Each mistake has its line, what was expected, and a hint.
"""

import dataclasses
import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from harness.base.errors import ConfigError, meant


@dataclass(frozen=True, kw_only=True)
class Key:
    """The permitted values of a key in a table.

    ``kind`` is the type of the value. ``choices`` are the permitted strings; empty permits all. If
    ``each`` is True, a list of such values is permitted, too.
    """

    kind: type
    required: bool = False
    choices: Sequence[str] = ()
    each: bool = False


def keys_of(cls: type, **others: Key | None) -> dict[str, Key]:
    """Return a key for each field of a dataclass, according to its type.

    ``others`` replaces the key of a field, or removes it if the value is None. The key of a tuple
    field permits a list or a single value. A key is optional if its field has a default.
    """
    hints = get_type_hints(cls)
    keys = dict[str, Key]()
    for field in dataclasses.fields(cls):
        hint: Any = hints[field.name]
        repeated = get_origin(hint) is tuple
        kind = next((a for a in get_args(hint) if a is not type(None)), hint)
        choices = tuple(map(str, kind)) if isinstance(kind, EnumType) else ()
        keys[field.name] = Key(
            kind=str if choices else kind,
            required=field.default is dataclasses.MISSING,
            choices=choices,
            each=repeated,
        )
    return {name: key for name, key in {**keys, **others}.items() if key is not None}


@dataclass
class Problem:
    """One mistake in a file.

    ``line`` is its line number (0 = the whole file), and ``source`` is the text of this line.
    ``text`` describes the mistake.
    """

    line: int
    source: str
    text: str
    hint: str = ""


#: What to do after the mistakes of a file are corrected, unless a command checks such files.
SAME = "the same command again"


class Problems:
    """A collection of the mistakes in one file, which are raised together."""

    def __init__(self, path: Path, lines: Sequence[str], then: str = SAME) -> None:
        self.path = path
        self.lines = lines
        self.then = then
        self.found: list[Problem] = []

    def lines_of(self, pattern: str) -> list[int]:
        """Return the numbers of the lines that begin with a pattern, ignoring indentation."""
        return [i for i, line in enumerate(self.lines, 1) if re.match(rf"\s*{pattern}", line)]

    def line_of(self, pattern: str) -> int:
        """Return the number of the first line that begins with a pattern, or 0."""
        return next(iter(self.lines_of(pattern)), 0)

    def add(self, line: int, text: str, hint: str = "") -> None:
        """Add a mistake in a line."""
        source = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        self.found.append(Problem(line, source, text, hint))

    def raise_any(self) -> None:
        """Raise ConfigError with all mistakes in the order of the file, if there are any."""
        if not self.found:
            return
        noun = "problem" if len(self.found) == 1 else "problems"
        lines = [f"{self.path}: {len(self.found)} {noun}"]
        for problem in sorted(self.found, key=lambda problem: problem.line):
            lines.append(f"  line {problem.line}: {problem.source}")
            lines.append(f"    {problem.text}")
            if problem.hint:
                lines.append(f"    hint: {problem.hint}")
        raise ConfigError("\n".join(lines), fix=f"edit {self.path}, then {self.then}")


@dataclass(frozen=True, kw_only=True)
class TomlTable:
    """One table of a file: the line of its header, its values, and the line of every key."""

    line: int
    values: Mapping[str, Any]
    lines: Mapping[str, int]


def read(path: Path, option: str, then: str = SAME) -> tuple[dict[str, Any], Problems]:
    """Read a TOML file. Return its content and an empty collection for its mistakes.

    ``option`` is the command-line option with which the file was given. ``then`` is the command to
    run after the mistakes are fixed. Raises ConfigError if the file is unreadable or invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        there = next(parent for parent in path.absolute().parents if parent.is_dir())
        raise ConfigError(
            f"cannot be read: {error.strerror}",
            where=str(path),
            expected=f"{option} FILE",
            fix=f"ls {there}",
        ) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"line {line} is not UTF-8 text",
            where=str(path),
            fix=f"iconv -f latin1 -t utf-8 {path}",
        ) from None
    problems = Problems(path, text.splitlines(), then)
    try:
        return tomllib.loads(text), problems
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+)", str(error))
        problems.add(int(match[1]) if match else 0, f"not valid TOML: {error}")
        problems.raise_any()
        raise


def read_tables(
    path: Path, name: str, option: str, then: str = SAME
) -> tuple[list[TomlTable], Problems]:
    """Read all ``[[name]]`` tables of a TOML file. Every other top-level key is a mistake."""
    doc, problems = read(path, option, then)
    refuse_others(doc, [name], problems)
    return tables_of(doc, name, problems), problems


def refuse_others(doc: Mapping[str, Any], known: Sequence[str], problems: Problems) -> None:
    """Add every unknown top-level key to ``problems``."""
    for key in doc.keys() - set(known):
        line = problems.line_of(rf"\[*\s*{re.escape(key)}\b")
        hint = meant(key, known) or f"expected {' or '.join(map(repr, known))}"
        problems.add(line, f"unknown top-level key {key!r}", hint)


def tables_of(doc: Mapping[str, Any], name: str, problems: Problems) -> list[TomlTable]:
    """Return the ``[[name]]`` tables of a file with their lines."""
    rows = doc.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        problems.add(
            problems.line_of(name), f"{name!r} must be an array of tables", f"write [[{name}]]"
        )
        rows = []
    starts = problems.lines_of(rf"\[\[\s*{name}\s*\]\]")
    starts += [0] * (len(rows) - len(starts))  # inline tables have no header line
    return [_table(row, start, problems) for row, start in zip(rows, starts, strict=False)]


def table_of(doc: Mapping[str, Any], name: str, problems: Problems) -> TomlTable:
    """Return the ``[name]`` table of a file with its lines; an empty table if there is none."""
    row = doc.get(name, {})
    if not isinstance(row, dict):
        problems.add(problems.line_of(name), f"{name!r} must be a table", f"write [{name}]")
        row = {}
    return _table(row, problems.line_of(rf"\[\s*{name}\s*\]"), problems)


def _table(values: Mapping[str, Any], start: int, problems: Problems) -> TomlTable:
    """Return a table with the lines of its keys, which are searched up to the next header."""
    lines: dict[str, int] = {}
    for number in range(start + 1, len(problems.lines) + 1) if start else ():
        text = problems.lines[number - 1]
        if re.match(r"\s*\[\[?\s*[A-Za-z]", text):
            break
        if match := re.match(r"\s*([A-Za-z0-9_-]+)\s*=", text):
            lines.setdefault(match[1], number)
    return TomlTable(line=start, values=values, lines=lines)


def check_table(table: TomlTable, keys: Mapping[str, Key], problems: Problems, name: str) -> bool:
    """Add the mistakes in a table to ``problems``, and return whether there are none."""
    before = len(problems.found)
    missing = [k for k, rule in keys.items() if rule.required and k not in table.values]
    for key, value in table.values.items():
        line = table.lines.get(key, table.line)
        if key not in keys:
            hint = meant(key, keys)
            # If the hint names a required key, this key is not reported as missing, too.
            missing = [k for k in missing if repr(k) not in hint]
            problems.add(line, f"unknown key {key!r} in [[{name}]]", hint)
            continue
        rule = keys[key]
        for item in value if rule.each and isinstance(value, list) else [value]:
            _check_value(item, rule, line, problems)
    for key in missing:
        problems.add(table.line, f"missing required key {key!r}")
    return len(problems.found) == before


def _check_value(value: Any, rule: Key, line: int, problems: Problems) -> None:
    """Add a value to ``problems`` if it has the wrong type or is not one of the choices."""
    kinds = (int, float) if rule.kind is float else (rule.kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and rule.kind is not bool):
        want = "a date (2026-12-31)" if rule.kind is datetime.date else f"a {rule.kind.__name__}"
        problems.add(line, f"expected {want}, found the {type(value).__name__} {value!r}")
    elif rule.choices and value not in rule.choices:
        hint = meant(str(value), rule.choices) or f"one of {', '.join(rule.choices)}"
        problems.add(line, f"{value!r} is not allowed here", hint)
