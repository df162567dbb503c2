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
    """The occasions on which the user's notification command runs.

    It runs only if there is something to report, or always.
    """

    NEWS = "news"
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a nightly run.

    ``suites`` and ``arguments`` are passed to pytest. ``control`` is the interpreter of the pinned
    environment. A nightly run that ended less than ``again_after`` ago is not repeated. ``wait`` is
    how long to wait for a busy host. Records are removed after ``keep``, and entries of the history
    are never removed. ``notify`` is a command that receives one JSON document on stdin, on the
    occasion ``notify_when``. If ``rerun`` is set, suspicious cases are measured once more. If
    ``publish`` is set, asv's page is made too. Durations are texts such as ``12h``.
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
        """The results folder."""
        return Path(self.results)


#: Fields that are durations.
_TIMES = ("again_after", "wait", "keep")


def load(path: Path | None) -> Config:
    """Return the configuration in a file, or the default one; raise ConfigError with
    every mistake.
    """
    if path is None:
        return Config()
    doc, problems = read(path, "--config", "scaleproof history nightly")
    lines = {name: problems.line_of(rf"{re.escape(name)}\s*=") for name in doc}
    check_table(TomlTable(line=1, values=doc, lines=lines), keys_of(Config), problems, path.name)
    for name in _TIMES:
        if isinstance(doc.get(name), str) and length_s(doc[name]) is None:
            problems.add(lines[name], f"{doc[name]!r} is not a duration", "12h, 10m, 30d")
    problems.raise_any()
    several = {name for name, key in keys_of(Config).items() if key.each}
    listed = {
        k: [value] if k in several and isinstance(value, str) else value for k, value in doc.items()
    }
    return from_doc(Config, listed, path.name)


def seconds(length: str) -> float:
    """Return a duration such as ``30d`` in seconds. The text must be valid."""
    checked = length_s(length)
    assert checked is not None
    return checked


#: Prefix of the nonces that mark records of nightly runs.
NONCE = "night-"


class Stage(StrEnum):
    """The next stage of a nightly run."""

    MEASURE = "measure"
    KEEP = "keep"
    AGAIN = "again"
    PUBLISH = "publish"
    TELL = "tell"
    PRUNE = "prune"
    DONE = "done"


class NightRunsError(LaunchError):
    """Raised if another process is measuring a nightly run."""

    exit = Exit.NOTHING_JUDGED


@dataclass(frozen=True, kw_only=True)
class NightState:
    """The state of a nightly run.

    ``stage`` is the next stage. ``suites`` is the exit status of pytest, and ``exit`` the exit
    status of the nightly run. ``nonce`` identifies the record of the run.
    """

    nonce: str
    begun_at: str
    stage: Stage = Stage.MEASURE
    suites: int | None = None
    ended_at: str = ""
    exit: int = 0

    @property
    def name(self) -> str:
        """The name of the nightly run: its nonce without the prefix."""
        return self.nonce.removeprefix(NONCE)

    def run(self, results: Path, again: bool = False) -> Path | None:
        """Return the folder of the run whose record has this nonce, or None if there is none.

        ``again`` selects the second run, which measured suspicious cases once more.
        """
        wanted = f"{self.nonce}-again" if again else self.nonce
        for path in sorted((results / "runs").glob("*/*/record.json"), reverse=True):
            if _nonce(path) == wanted:
                return path.parent
        return None

    def age_s(self) -> float:
        """Return the seconds since the nightly run ended."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.ended_at)).total_seconds()


def _nonce(record: Path) -> str:
    """Return the nonce in a record, or an empty string."""
    try:
        nonce = json.loads(record.read_text(encoding="utf-8"))["settings"].get("nonce", "")
    except (OSError, ValueError, KeyError):
        return ""
    return str(nonce)


def of_a_night(record: Path) -> bool:
    """Return whether a record was measured by a nightly run, not by hand."""
    return _nonce(record).startswith(NONCE)


def begin() -> NightState:
    """Return the state of a new nightly run."""
    now = datetime.now(UTC)
    return NightState(
        nonce=f"{NONCE}{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        begun_at=now.isoformat(timespec="seconds"),
    )


def known(results: Path) -> NightState | None:
    """Return the state of the last nightly run; None if there is none or its file is damaged."""
    path = _path(results)
    try:
        return from_doc(NightState, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def note(results: Path, tonight: NightState) -> NightState:
    """Write the state of the nightly run to disk and return it."""
    path = _path(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.writing_to(path.parent):
        files.write({path: json.dumps(to_doc(tonight), indent=1) + "\n"})
    return tonight


def forget(results: Path) -> None:
    """Remove the state, so that the next call begins a new nightly run."""
    _path(results).unlink(missing_ok=True)


def at(results: Path, tonight: NightState, stage: Stage, **more: object) -> NightState:
    """Write the nightly run at its next stage to disk and return it."""
    return note(results, replace(tonight, stage=stage, **more))  # type: ignore[arg-type]


def _path(results: Path) -> Path:
    """Return the path of the state."""
    return results / "nightly.json"


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """Hold the lock of nightly runs; raise NightRunsError if another process holds it."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".nightly.lock").open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NightRunsError(
                "another nightly run is in progress here: nothing was measured",
                where=str(results),
                expected="only one nightly run is in progress",
                fix="scaleproof history nightly, after the other nightly run has ended",
            ) from None
        yield
