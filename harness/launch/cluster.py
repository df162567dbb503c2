"""Read a cluster file: the settings of each engine at a site, one TOML table for each engine."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from harness.base.documents import Json
from harness.base.errors import meant
from harness.base.toml import Problems, read
from harness.cases import Entry

#: Control characters, which could end a line of a batch script or of a terminal's output.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


#: Time limits that the table of any engine may set, and their defaults, in seconds. ``join_s``
#: limits how long agents take to connect after their job has started. ``queue_s`` limits how long
#: the job waits in a queue (0: no limit). ``lost_s`` limits how long an agent sends no message.
#: ``collective_s`` limits the duration of a collective (0: one minute, and longer if steps are
#: slow).
WAITS = dict(join_s=300.0, queue_s=0.0, lost_s=10.0, collective_s=0.0)


#: The time limits for which 0 is allowed and has a special meaning (see ``WAITS``).
_MAY_BE_ZERO = frozenset({"queue_s", "collective_s"})


def cluster_settings(path: Path | None, engine: str, known: Mapping[str, Entry]) -> dict[str, Json]:
    """Return the settings of an engine: its defaults, updated from its table in the file.

    Raise ConfigError with all mistakes of the file, including mistakes in tables of other engines.
    """
    defaults = WAITS | dict(known[engine].head.get("SETTINGS", {}))
    if path is None:
        return defaults
    doc, problems = read(path, "--cluster")
    for name, table in doc.items():
        line = problems.line_of(rf"\[\s*{re.escape(name)}\s*\]")
        if name not in known:
            hint = meant(name, known) or f"one of {', '.join(known)}"
            problems.add(line, f"no engine {name!r}", hint)
            continue
        _check(table, WAITS | dict(known[name].head.get("SETTINGS", {})), name, problems)
    problems.raise_any()
    return {**defaults, **doc.get(engine, {})}


def _check(table: Json, defaults: Mapping[str, Json], name: str, problems: Problems) -> None:
    """Add the mistakes in the table of one engine to ``problems``."""
    if not isinstance(table, dict):
        problems.add(problems.line_of(re.escape(name)), f"{name!r} must be a table", f"[{name}]")
        return
    for key, value in table.items():
        line = problems.line_of(rf"{re.escape(key)}\s*=")
        if key not in defaults:
            hint = meant(key, defaults) or f"one of {', '.join(defaults)}"
            problems.add(line, f"unknown key {key!r} in [{name}]", hint)
        elif key in WAITS and type(value) in (int, float):
            if not math.isfinite(value) or value < 0 or (value == 0 and key not in _MAY_BE_ZERO):
                problems.add(line, f"{key} = {value}", "a number of seconds above 0")
        elif type(value) is not type(defaults[key]) and not (key == "python" and _words(value)):
            want = type(defaults[key]).__name__
            received = type(value).__name__
            problems.add(line, f"expected a {want}, found the {received} {value!r}")
        elif isinstance(value, list) and not all(isinstance(v, str) for v in value):
            problems.add(line, f"expected a list of strings, found {value!r}")
        elif _CONTROL.search("".join(value) if isinstance(value, list) else str(value)):
            problems.add(line, f"{value!r} has a control character", "one line of plain text")
        elif key == "python" and isinstance(value, str) and " " in value:
            words = ", ".join(f'"{word}"' for word in value.split())
            problems.add(line, f"{value!r} contains blanks", f"write a list: [{words}]")
        elif key == "port" and not 0 <= value < 65536:
            problems.add(line, f"{value} is not a port", "0 (any free port) to 65535")
        elif key == "cpus" and value < 0:
            problems.add(
                line, f"cpus = {value}", "the number of CPUs of each rank; 0: all CPUs of a node"
            )


def _words(value: Json) -> bool:
    """Return whether a value is a command in several words: ``["apptainer", "exec", IMAGE]``."""
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)
