"""The Order, which is the description of a launch that is to be made."""

import random
from dataclasses import dataclass

from harness.analysis.packing import Placement
from harness.analysis.samples.references import LossCurve
from harness.cases import Arm, Plan, Window
from harness.launch.wire.messages import InjectedBitFlip, Script
from harness.record import Purpose


@dataclass(frozen=True, kw_only=True)
class Order:
    """The description of a launch: its case, its purpose and its position in the protocol.

    ``window`` has the numbers of steps and of warm-up steps. ``turn`` is the number of the pass
    over the arms; -1 means that the launch is in no pass. ``attempt`` is 1 in the fresh set of
    launches that confirms a FAIL, otherwise 0. ``reference`` is the loss curve with which the
    losses of the launch are compared. ``seat`` is the placement on nodes and devices; None means
    the first nodes. ``streamed`` is True for a reference whose model is too large for one device.
    ``replicates`` is the number of extra reference trainings that show how much rounding changes a
    loss. ``script`` is the task of a user's training script. ``flip`` is the bit flip that is
    injected into a launch that compares bits. ``behind`` describes the profile of the steps after
    the timed window; None if these steps are not profiled.
    """

    plan: Plan
    arm: Arm
    purpose: Purpose
    window: Window
    turn: int = -1
    attempt: int = 0
    reference: LossCurve | None = None
    seat: Placement | None = None
    streamed: bool = False
    replicates: int = 0
    script: Script | None = None
    flip: InjectedBitFlip | None = None
    behind: "Order | None" = None

    @property
    def profiled(self) -> bool:
        """Whether steps of this launch are traced, in its window or after it."""
        return self.purpose is Purpose.PROFILE or self.behind is not None

    @property
    def block(self) -> int:
        """The block that the turn belongs to, or -1 if the launch belongs to no block."""
        return self.turn // 2 if self.purpose in (Purpose.TIMED, Purpose.PROFILE) else -1

    @property
    def label(self) -> str:
        """The purpose, or for launches in blocks a letter and the turn.

        Letters are ``t`` for timed launches and ``p`` for profiles. In the fresh set that confirms
        a FAIL they are ``c`` and ``q``. An example is ``t03``.
        """
        if self.purpose not in (Purpose.TIMED, Purpose.PROFILE):
            return str(self.purpose)
        letters = "tc" if self.purpose is Purpose.TIMED else "pq"
        return f"{letters[self.attempt]}{self.turn:02}"

    @property
    def draw(self) -> int:
        """The seed of the noise of this launch."""
        place = f"{self.arm.name}-{self.purpose}-{self.attempt}-{self.turn}"
        # These purposes launch one arm at several placements, and each placement has its own noise.
        if self.purpose in (Purpose.PROBE, Purpose.ROUND):
            place += f"-{self.seat}"
        return random.Random(f"{self.plan.protocol.seed}-{place}").randrange(2**31)
