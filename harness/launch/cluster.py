"""A cluster file: what a site's engines need to know, one table for each, as ``[slurm]``.

The keys and their types are those of the engine's own ``SETTINGS``.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from harness.base.documents import Json
from harness.base.errors import ConfigError
from harness.base.toml import Problems
from harness.spec import Entry


def settings(path: Path | None, engine: str, known: Mapping[str, Entry]) -> dict[str, Json]:
    """The settings of an engine: its defaults, and what its table says. Every mistake at once."""
    defaults = dict(known[engine].head.get("SETTINGS", {}))
    if path is None:
        return defaults
    fix = f"edit {path}"
    try:
        problems = Problems(path)
        doc = tomllib.loads("\n".join(problems.lines))
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(path), fix="--cluster FILE"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", where=str(path), fix=fix) from None
    for name, table in doc.items():
        line = _line(problems, rf"\[\s*{re.escape(name)}\s*\]")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}"
            problems.add(line, f"no engine {name!r}", hint)
            continue
        _check(table, known[name].head.get("SETTINGS", {}), name, problems)
    problems.raise_any()
    return {**defaults, **doc.get(engine, {})}


def _check(table: Json, defaults: Mapping[str, Json], name: str, problems: Problems) -> None:
    if not isinstance(table, dict):
        problems.add(_line(problems, re.escape(name)), f"{name!r} must be a table", f"[{name}]")
        return
    for key, value in table.items():
        line = _line(problems, rf"{re.escape(key)}\s*=")
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(defaults)}"
            problems.add(line, f"unknown key {key!r} in [{name}]", hint)
        elif type(value) is not type(defaults[key]):
            want, got = type(defaults[key]).__name__, type(value).__name__
            problems.add(line, f"expected a {want}, found the {got} {value!r}")
        elif isinstance(value, list) and not all(isinstance(v, str) for v in value):
            problems.add(line, f"expected a list of texts, found {value!r}")
        elif key == "port" and not 0 <= value < 65536:
            problems.add(line, f"{value} is no port", "0 (any that is free) to 65535")


def _line(problems: Problems, pattern: str) -> int:
    numbers = (i for i, line in enumerate(problems.lines, 1) if re.match(rf"\s*{pattern}", line))
    return next(numbers, 0)
