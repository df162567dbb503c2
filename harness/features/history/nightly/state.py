"""The configuration of a nightly run, and its state on disk."""

import fcntl
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from harness.base import files
from harness.base.documents import from_doc, to_doc
from harness.base.errors import Exit, LaunchError
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
    doc, problems = read(path, "--config", "scaleproof history nightly")
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


#: How the texts begin that the runs of nights are sealed with.
NONCE = "night-"


class Stage(StrEnum):
    """The stage of a night that is to be done next."""

    MEASURE = "measure"
    KEEP = "keep"
    AGAIN = "again"
    PUBLISH = "publish"
    TELL = "tell"
    PRUNE = "prune"
    DONE = "done"


class NightRunsError(LaunchError):
    """Another process measures tonight."""

    exit = Exit.NOTHING_JUDGED


@dataclass(frozen=True, kw_only=True)
class NightState:
    """A night in the making. ``suites`` is how pytest ended, ``again`` the same of what leapt."""

    nonce: str
    begun_at: str
    stage: Stage = Stage.MEASURE
    suites: int | None = None
    ended_at: str = ""
    exit: int = 0

    @property
    def name(self) -> str:
        return self.nonce.removeprefix(NONCE)

    def run(self, results: Path, again: bool = False) -> Path | None:
        """The folder of its run, found by the text that the run was sealed with."""
        wanted = f"{self.nonce}-again" if again else self.nonce
        for path in sorted((results / "runs").glob("*/*/record.json"), reverse=True):
            if _nonce(path) == wanted:
                return path.parent
        return None

    def age_s(self) -> float:
        """Since it ended."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.ended_at)).total_seconds()


def _nonce(record: Path) -> str:
    try:
        nonce = json.loads(record.read_text(encoding="utf-8"))["settings"].get("nonce", "")
    except (OSError, ValueError, KeyError):
        return ""
    return str(nonce)


def of_a_night(record: Path) -> bool:
    """Whether a run was measured by a night, not by hand."""
    return _nonce(record).startswith(NONCE)


def begin() -> NightState:
    now = datetime.now(UTC)
    return NightState(
        nonce=f"{NONCE}{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        begun_at=now.isoformat(timespec="seconds"),
    )


def known(results: Path) -> NightState | None:
    """The last night, done or not; None before the first one, or where its file is torn."""
    path = _path(results)
    try:
        return from_doc(NightState, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def note(results: Path, tonight: NightState) -> NightState:
    """Write down where the night is."""
    path = _path(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.writing_to(path.parent):
        files.write({path: json.dumps(to_doc(tonight), indent=1) + "\n"})
    return tonight


def forget(results: Path) -> None:
    """Begin this night anew: what was noted of it is forgotten."""
    _path(results).unlink(missing_ok=True)


def at(results: Path, tonight: NightState, stage: Stage, **more: object) -> NightState:
    """The night at its next stage, written down."""
    return note(results, replace(tonight, stage=stage, **more))  # type: ignore[arg-type]


def _path(results: Path) -> Path:
    return results / "nightly.json"


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """One night at a time; NightRunsError for a second one."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".nightly.lock").open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NightRunsError(
                "another night is being measured here: nothing was done",
                where=str(results),
                expected="one night at a time",
                fix="scaleproof history nightly, when that has ended",
            ) from None
        yield
