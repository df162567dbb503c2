"""``nightly.toml``: what a night measures, and what becomes of it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.base.documents import from_doc
from harness.base.formatting import length_s
from harness.base.toml import TomlTable, check_table, keys_of, read


class Occasion(StrEnum):
    """When the user's command is told of a night."""

    NEWS = "news"
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class Config:
    """One night.

    ``suites`` and ``arguments`` are pytest's; ``control`` is the interpreter of the pinned
    environment. A night that ended less than ``again_after`` ago is not measured again. A busy host
    is given ``wait`` to calm down. Runs are removed after ``keep``, their nights never. ``notify``
    is a command that gets one JSON document on stdin; ``rerun``: a case that leapt is measured once
    more; ``publish``: asv's page is made, too.
    """

    suites: tuple[str, ...] = ("suites/",)
    arguments: tuple[str, ...] = ()
    results: str = "results"
    control: str = ""
    again_after: str = "12h"
    wait: str = "10m"
    keep: str = "30d"
    rerun: bool = True
    publish: bool = True
    notify: str = ""
    notify_when: Occasion = Occasion.NEWS

    @property
    def folder(self) -> Path:
        return Path(self.results)


#: Fields that are lengths of time.
_TIMES = ("again_after", "wait", "keep")


def load(path: Path | None) -> Config:
    """The file's configuration, or the usual one without it. ConfigError with every mistake."""
    if path is None:
        return Config()
    doc, problems = read(path, "--config", "scaleproof nightly")
    lines = {name: problems.line_of(rf"{re.escape(name)}\s*=") for name in doc}
    check_table(TomlTable(line=1, values=doc, lines=lines), keys_of(Config), problems, path.name)
    for name in _TIMES:
        if isinstance(doc.get(name), str) and length_s(doc[name]) is None:
            problems.add(lines[name], f"{doc[name]!r} is no length of time", "12h, 10m, 30d")
    problems.raise_any()
    several = {name for name, key in keys_of(Config).items() if key.each}
    listed = {
        k: [value] if k in several and isinstance(value, str) else value for k, value in doc.items()
    }
    return from_doc(Config, listed, path.name)


def seconds(length: str) -> float:
    """``30d`` in seconds, of a length that was checked."""
    checked = length_s(length)
    assert checked is not None
    return checked
