"""Tonight: where a night is, on disk, so that whoever is started next goes on from there.

measure -> keep -> measure again what leapt -> publish -> tell -> prune -> done

Every stage can be repeated safely. So a night that was cut off anywhere is neither
lost nor doubled.
"""

import fcntl
import json
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
                fix="scaleproof nightly, when that has ended",
            ) from None
        yield
