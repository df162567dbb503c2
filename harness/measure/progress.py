"""What a run tells whoever watches it."""

import time
from dataclasses import dataclass

from harness.launch.engine import Watch
from harness.record import Purpose


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

    def show(self, moment: Moment | Waiting | Looking) -> None:
        """Called several times a second."""

    def note(self, text: str) -> None:
        """One line worth keeping."""

    def clear(self) -> None:
        """Leave the screen as it was."""


def waiting(progress: Progress) -> Watch:
    """Shows a wait for agents: in a queue, or while they import torch."""
    began = time.monotonic()

    def watch(here: int, wanted: int, says: str) -> None:
        waited_s = time.monotonic() - began
        progress.show(Waiting(here=here, wanted=wanted, says=says, waited_s=waited_s))

    return watch
