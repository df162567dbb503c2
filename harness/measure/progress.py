"""Messages of a run to whoever watches it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cases import CaseSpec
from harness.launch.engine import Watch
from harness.record import LaunchRecord, Purpose, RunRecord

if TYPE_CHECKING:
    from harness.measure.run import Run


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
