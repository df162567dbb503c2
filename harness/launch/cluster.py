"""A cluster file: the settings of each engine at a site, one table for each engine."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from harness.base.documents import Json
from harness.base.errors import meant
from harness.base.toml import Problems, read
from harness.cases import Entry

#: What would end a line of a batch script, or of a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


#: What any engine's table may say: how long agents may take to join once their job runs, how long
#: the job may wait in a queue (0: for ever), for how long an agent may be silent, and how long a
#: collective may take (0: a minute, and longer where steps are slow); in seconds.
WAITS = dict(join_s=300.0, queue_s=0.0, lost_s=10.0, collective_s=0.0)


#: Of these 0 is a word.
_MAY_BE_ZERO = frozenset({"queue_s", "collective_s"})


def cluster_settings(path: Path | None, engine: str, known: Mapping[str, Entry]) -> dict[str, Json]:
    """The settings of an engine: its defaults, and what its table says. Every mistake at once."""
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
            problems.add(line, f"{value!r} is one word with blanks", f"a list: [{words}]")
        elif key == "port" and not 0 <= value < 65536:
            problems.add(line, f"{value} is not a port", "0 (any free port) to 65535")
        elif key == "cpus" and value < 0:
            problems.add(line, f"{value} CPUs", "CPUs of each rank; 0: all of a node for its GPUs")


def _words(value: Json) -> bool:
    """Whether a value is a command in several words, as ``["apptainer", "exec", IMAGE]``."""
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)
