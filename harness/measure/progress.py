"""What a run tells whoever watches it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.base.numbers import rate
from harness.launch.engine import Watch
from harness.measure.bench import Order, mean_wall_s
from harness.record import LaunchRecord, Purpose
from harness.spec import Arm, Plan


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run is, for whoever draws it."""

    plan: str
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


class Progress:
    """Whoever shows the run while it goes on; by itself it shows nothing."""

    def show(self, moment: Moment | Waiting) -> None:
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


def moment(
    order: Order,
    launches: Sequence[LaunchRecord],
    arms: Sequence[Arm],
    waiting: Sequence[tuple[Plan, Sequence[Sequence[Arm]]]],
    elapsed_s: float,
) -> Moment:
    """Where a run is as a launch begins.

    ``arms`` are those of the order's plan that are timed, ``waiting`` all plans not yet done, with
    their arms by slot.
    """

    def timed(plan: Plan) -> list[LaunchRecord]:
        return [x for x in launches if x.plan == plan.hash and x.purpose is Purpose.TIMED]

    plan_launches = timed(order.plan)
    left = None
    if wall_s := mean_wall_s(launches):
        usual = sum(wall_s.values()) / len(wall_s)
        left = 0.0
        for plan, slots in waiting:
            turns = len(timed(plan)) // max(1, sum(map(len, slots)))
            missing = max(0, 2 * plan.protocol.min_blocks - turns)
            slot_s = (max(wall_s.get(a.case.hash, usual) for a in slot) for slot in slots)
            left += missing * sum(slot_s)
    last = ""
    if plan_launches and (seen := plan_launches[-1].throughput) is not None:
        last = f"{rate(seen)} samples/s"
    return Moment(
        plan=order.plan.name,
        arm=order.arm.case.id,
        purpose=order.purpose,
        launch=len(plan_launches) + 1,
        num_launches=max(2 * order.plan.protocol.min_blocks * len(arms), len(plan_launches) + 1),
        step=0,
        num_steps=order.window.steps,
        elapsed_s=elapsed_s,
        left_s=left,
        last=last,
    )
