"""An order: which launch is wanted."""

import random
from dataclasses import dataclass

from harness.analysis.packing import Placement
from harness.analysis.samples.references import LossCurve
from harness.cases import Arm, Plan, Window
from harness.launch.wire.messages import InjectedBitFlip, Script
from harness.record import Purpose


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which launch is wanted: of what, what for, and where in the protocol it stands.

    ``reference`` is what its losses are compared with. ``seat`` is where it runs; None = on the
    first nodes. ``streamed``: a reference too large for one device; ``replicates`` of it show how
    much rounding changes a loss. ``script``: a user's own.
    ``flip`` is planted where bits are compared. ``behind`` is the profile that is taken of the
    steps behind the window.
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
        """Whether steps of it are traced, in its window or behind it."""
        return self.purpose is Purpose.PROFILE or self.behind is not None

    @property
    def block(self) -> int:
        """The block that a turn is in; -1 of what is in none."""
        return self.turn // 2 if self.purpose in (Purpose.TIMED, Purpose.PROFILE) else -1

    @property
    def label(self) -> str:
        """``gate``, ``pilot``, or the turn: ``t03`` and ``p00``, ``c03`` and ``q00`` to confirm."""
        if self.purpose not in (Purpose.TIMED, Purpose.PROFILE):
            return str(self.purpose)
        letters = "tc" if self.purpose is Purpose.TIMED else "pq"
        return f"{letters[self.attempt]}{self.turn:02}"

    @property
    def draw(self) -> int:
        """The seed of the launch's own noise."""
        place = f"{self.arm.name}-{self.purpose}-{self.attempt}-{self.turn}"
        if self.purpose in (Purpose.PROBE, Purpose.ROUND):  # the same arm at several places
            place += f"-{self.seat}"
        return random.Random(f"{self.plan.protocol.seed}-{place}").randrange(2**31)
