"""Progress messages of a run, and the handling of signals that end it."""

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

#: Set if this process received a signal to end, even if Python dropped the exception that the
#: signal handler raised.
INTERRUPTED = threading.Event()
#: Number of calls in progress that must not be interrupted, and whether a signal arrived during
#: them.
_writing = 0
_waiting = False


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP (a closed terminal) end a run as Ctrl-C does, so that the measurements
    are kept.

    Python drops an exception that is raised while it finalizes an object. The handler therefore
    also sets ``INTERRUPTED``.
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
        if (
            signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        ):  # nohup sets SIG_IGN, which must stay
            signal.signal(signal.SIGHUP, interrupt)


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that a signal during a call takes effect only after the call has ended.

    The chain on disk and the state in memory therefore never differ.
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
    """A point in a run for a progress display: the launch, its plan and the estimated time left."""

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
    """The progress of a run that waits for its agents.

    ``here`` of ``wanted`` agents have joined after ``waited_s`` seconds. ``says`` is the
    scheduler's or the engine's description of the state of their job.
    """

    here: int
    wanted: int
    says: str
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class Looking:
    """The progress of describing cases: an agent computes their FLOPs, messages and memory.

    ``done`` of ``num_cases`` cases are described after ``elapsed_s`` seconds. ``left_s`` is the
    predicted remaining time in seconds, if known.
    """

    case: str
    done: int
    num_cases: int
    elapsed_s: float
    left_s: float | None


class Progress:
    """An observer that displays a run in progress. This base class displays nothing."""

    def begin(self, run: Run) -> None:
        """Receive the run that will be displayed, before anything is launched."""

    def show(self, moment: Moment | Waiting | Looking) -> None:
        """Display the current state; called several times a second."""

    def note(self, text: str) -> None:
        """Display one line that should stay on the screen."""

    def clear(self) -> None:
        """Remove the progress display and restore the screen."""

    def launched(self, case: CaseSpec, launch: LaunchRecord) -> None:
        """Receive a launch that was entered in the record."""

    def ended(self, record: RunRecord) -> None:
        """Receive the record of a run, with its verdicts, after it was written."""

    def broke(self, error: BaseException) -> None:
        """Receive the error that ended the measurement; earlier launches are already written."""


class Beside(Progress):
    """A base class of observers that display a run in a second place.

    Each method passes its call on to the observer ``inner``. Subclasses override some methods.
    """

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
    """Return a function that displays a wait for agents, in a queue or while they import torch."""
    began = time.monotonic()

    def watch(here: int, wanted: int, says: str) -> None:
        waited_s = time.monotonic() - began
        progress.show(Waiting(here=here, wanted=wanted, says=says, waited_s=waited_s))

    return watch
