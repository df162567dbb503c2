"""The plan of what is measured together: arms, contrasts, protocol. Pure data."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from harness.base.documents import lean
from harness.cases.case import CaseSpec, digest

#: Steps that a profiled launch traces.
PROFILED = 8
#: Steps without the profiler, before those with it: they show how much it adds to a step.
UNPROFILED = 4
#: Of an outline: how often a step with it stands between two without it, to see what it costs.
PAIRS = 6
#: Kinds of baseline that a ratio can refer to.
BASELINES = (
    "plain", "wrapped", "one_node", "smallest_fit", "sum_of_devices", "rung", "other", "control",
)  # fmt: skip


class Role(StrEnum):
    SUBJECT = "subject"
    BASELINE = "baseline"
    ABLATION = "ablation"
    CONTROL = "control"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A case with a role, measured once in every pass."""

    name: str
    case: CaseSpec
    role: Role


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One metric of a subject arm, as a ratio to its baseline arm(s), or absolute without them.

    ``against`` names the kind of baseline (plain, wrapped, one_node, smallest_fit,
    sum_of_devices, ...). Several baseline arms are added up. ``ideal`` is the ratio that
    perfect scaling would give; a ratio metric is shown divided by it. One of the ``curve`` is
    measured in a single block, and judged only if a contrast of its kind that is not fails.
    """

    name: str
    metric: str
    subject: str
    baseline: tuple[str, ...]
    against: str
    ideal: float = 1.0
    curve: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """Steps of a launch: the first ``cut`` warm up, the last ``profiled`` are traced.

    Before these, ``pairs`` single steps with the profiler alternate with steps without.
    """

    steps: int
    cut: int
    profiled: int = 0
    pairs: int = 0

    def outlined(self, step: int) -> bool:
        """Whether the profiler looks at this step."""
        first = self.steps - self.profiled
        return step >= first or (first - 2 * self.pairs - 1 <= step and (first - step) % 2 == 0)


#: Kept steps of a pilot, for each one that a timed launch keeps at least.
HORIZON = 2


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a plan is measured: settings, never identity.

    ``steps`` optimizer steps per launch, of which the first ``cut`` are warm-up: so a pilot runs,
    and a timed launch at least. On devices whose clocks settle it warms up for ``cut_s`` and is
    timed for ``kept_s`` seconds at least. A block is one pass over the arms and one back, two pairs
    per contrast; the judge looks after every block from ``min_blocks`` to ``max_blocks``. Pilots
    lengthen warm-up and window as steps and noise ask for, but not where they are ``fixed``.
    """

    steps: int
    cut: int
    min_blocks: int = 2
    max_blocks: int = 8
    seed: int = 0
    cut_s: float = 0.0
    kept_s: float = 0.0
    fixed: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.cut < self.steps and 0 <= self.min_blocks <= self.max_blocks):
            raise ValueError(
                f"a protocol needs 0 <= cut < steps and min_blocks <= max_blocks: {self}"
            )

    def lasting(self, window: Window, step_s: float) -> Window:
        """The window, with as many steps as the protocol's seconds ask for.

        ``step_s`` is what a step takes, in s.
        """
        cut = max(window.cut, math.ceil(self.cut_s / step_s))
        num_kept = max(window.steps - window.cut, math.ceil(self.kept_s / step_s))
        return replace(window, steps=cut + num_kept, cut=cut)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Arms measured in the same blocks, and the contrasts that are judged.

    ``epoch_samples`` are those of one epoch, where the recipe states it: reports then tell how long
    it takes. ``to_loss`` is how far above the floor of its data, in nats, a loss is to come: then
    every launch trains all steps of the protocol, and when it was there is measured. ``target`` is
    a size of the subject that is not launched: it is foreseen from those that are.
    """

    name: str
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]
    protocol: Protocol
    epoch_samples: int | None = None
    to_loss: float | None = None
    target: CaseSpec | None = None

    @property
    def brief(self) -> str:
        """The name, of a user's own script without its command: that stands once on a screen."""
        name = self.name
        for case in (arm.case for arm in self.arms if arm.case.script):
            name = name.replace(f"+script={case.series['script']}", "")
        return name

    def arm(self, name: str) -> Arm:
        """The arm of that name; AssertionError if a recipe forgot it."""
        named = [a for a in self.arms if a.name == name]
        assert len(named) == 1, f"plan {self.name}: {len(named)} arms named {name!r}"
        return named[0]

    @property
    def judged_arms(self) -> list[Arm]:
        """The arms that every first block launches: those that are not of the curve alone."""
        return list(self.only([c for c in self.contrasts if not c.curve]).arms) or list(self.arms)

    def num_first_launches(self, arms: Collection[Arm]) -> int:
        """The timed launches that these of its arms have in the blocks that every plan gets."""
        judged = [arm for arm in self.judged_arms if arm in arms]
        blocks = self.protocol.min_blocks
        return 2 * ((len(arms) + (blocks - 1) * len(judged)) if blocks else 0)

    @property
    def window(self) -> Window:
        """The least window of a timed launch."""
        return Window(steps=self.protocol.steps, cut=self.protocol.cut)

    @property
    def in_pilots(self) -> bool:
        """Whether its arms train in their pilots alone, each for itself: nothing is compared in the
        same blocks.
        """
        return not self.contrasts and self.protocol.max_blocks > self.protocol.min_blocks == 0

    @property
    def pilot(self) -> Window:
        """Longer than a timed launch: what happens every now and then may lie beyond its end."""
        cut, steps = self.protocol.cut, self.protocol.steps
        if self.to_loss is not None or self.protocol.fixed:
            return self.window
        return Window(steps=cut + HORIZON * (steps - cut), cut=cut)

    def profile(self, outline: bool) -> Window:
        """The window of a profiled launch: also steps without the profiler, for scale."""
        cut = self.protocol.cut
        if outline:
            steps = cut + 2 * PAIRS + 1 + PROFILED
            return Window(steps=steps, cut=cut, profiled=PROFILED, pairs=PAIRS)
        return Window(steps=cut + UNPROFILED + 1 + PROFILED, cut=cut, profiled=PROFILED)

    def only(self, wanted: Collection[Contrast]) -> Plan:
        """Returns the plan with these contrasts, and only the arms that they need."""
        names = {contrast.subject for contrast in wanted} | {
            b for contrast in wanted for b in contrast.baseline
        }
        contrasts = tuple(contrast for contrast in self.contrasts if contrast in wanted)
        return replace(
            self, contrasts=contrasts, arms=tuple(arm for arm in self.arms if arm.name in names)
        )

    @cached_property
    def hash(self) -> str:
        """Content hash: equal plans are measured once; a new field keeps every old hash."""
        return digest(lean(self))
