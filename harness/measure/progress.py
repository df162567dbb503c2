"""Progress messages of a run, and how interrupts end it."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from harness.cases import CaseSpec
from harness.launch.engine import Watch
from harness.record import LaunchRecord, Purpose, RunRecord

if TYPE_CHECKING:
    from harness.measure.run import Run

P = ParamSpec("P")
T = TypeVar("T")

#: Whether this program was asked to end, whatever became of the exception.
INTERRUPTED = threading.Event()
#: How many calls are under way that may not be interrupted, and whether somebody wanted to.
_writing = 0
_waiting = False


def end_on_signals() -> None:
    """Let SIGTERM, or a terminal that is gone, end a run as Ctrl-C does: cleanly, with what was
    measured kept.

    Python drops what is raised while it clears an object up; so a signal is also written down.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _waiting
        INTERRUPTED.set()
        if _writing:
            _waiting = True
        else:
            raise KeyboardInterrupt

    INTERRUPTED.clear()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, interrupt)


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which a signal ends after it is done: the chain on disk and what is known in
    memory never differ.
    """

    @functools.wraps(function)
    def whole(*args: P.args, **more: P.kwargs) -> T:
        global _writing, _waiting
        _writing += 1
        try:
            return function(*args, **more)
        finally:
            _writing -= 1
            if _waiting and not _writing:
                _waiting = False
                raise KeyboardInterrupt

    return whole


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run is, for whoever draws it: at which launch of which plan, and what is left."""

    plan: str
    number: int
    num_plans: int
    arm: str
    purpose: Purpose
    launch: int
    num_launches: int
    step: int
    num_steps: int
    elapsed_s: float
    left_s: float | None
    last: str


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A run that has not begun: how many agents are there, and what their job says."""

    here: int
    wanted: int
    says: str
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class Looking:
    """An agent is asked what cases compute, send and hold: how many have been, of how many."""

    case: str
    done: int
    num_cases: int
    elapsed_s: float
    left_s: float | None


class Progress:
    """Whoever shows the run while it goes on; by itself it shows nothing."""

    def begin(self, run: Run) -> None:
        """The run that will be shown, before anything of it is launched."""

    def show(self, moment: Moment | Waiting | Looking) -> None:
        """Called several times a second."""

    def note(self, text: str) -> None:
        """One line worth keeping."""

    def clear(self) -> None:
        """Leave the screen as it was."""

    def launched(self, case: CaseSpec, launch: LaunchRecord) -> None:
        """A launch that is in the record."""

    def ended(self, record: RunRecord) -> None:
        """The run is written down, with its verdicts."""

    def broke(self, error: BaseException) -> None:
        """The measuring ended by this; what was measured is written down."""


class Beside(Progress):
    """Passes on to ``inner`` whatever it is told: for those that show a run elsewhere, too."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def begin(self, run: Run) -> None:
        self._inner.begin(run)

    def show(self, moment: Moment | Waiting | Looking) -> None:
        self._inner.show(moment)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def clear(self) -> None:
        self._inner.clear()

    def launched(self, case: CaseSpec, launch: LaunchRecord) -> None:
        self._inner.launched(case, launch)

    def ended(self, record: RunRecord) -> None:
        self._inner.ended(record)

    def broke(self, error: BaseException) -> None:
        self._inner.broke(error)


def waiting(progress: Progress) -> Watch:
    """Shows a wait for agents: in a queue, or while they import torch."""
    began = time.monotonic()

    def watch(here: int, wanted: int, says: str) -> None:
        waited_s = time.monotonic() - began
        progress.show(Waiting(here=here, wanted=wanted, says=says, waited_s=waited_s))

    return watch
