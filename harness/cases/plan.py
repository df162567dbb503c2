"""The plan of a measurement: its arms, contrasts and protocol. This module holds only data."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from harness.base.documents import lean
from harness.cases.case import CaseSpec, digest

#: Number of steps that a profiled launch traces.
PROFILED = 8
#: Number of steps without the profiler before the traced steps. They show by how much the profiler
#: lengthens a step.
UNPROFILED = 4
#: Number of pairs of steps in a profile in outline mode. One step of a pair runs with the profiler
#: and one without; their difference is the cost of the profiler.
PAIRS = 6
#: The kinds of baseline to which a ratio can refer.
BASELINES = (
    "plain", "wrapped", "one_node", "smallest_fit", "sum_of_devices", "rung", "other", "control",
)  # fmt: skip


class Role(StrEnum):
    """The role of an arm in its plan."""

    SUBJECT = "subject"
    BASELINE = "baseline"
    ABLATION = "ablation"
    CONTROL = "control"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A case and its role in a comparison. Each pass over the plan launches each arm once."""

    name: str
    case: CaseSpec
    role: Role


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The comparison of a metric of a subject arm with its baseline arms.

    If there is no baseline, the contrast is the absolute value of the metric. ``against`` names the
    kind of baseline (plain, wrapped, one_node, smallest_fit, sum_of_devices, ...). The values of
    several baseline arms are added up. ``ideal`` is the ratio that perfect scaling would give; a
    ratio metric is divided by it. ``curve`` states that the contrast is measured in a single block
    for the scaling curve. It is judged only if the contrast at the largest world fails.
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
    """The steps of a launch.

    The launch has ``steps`` steps. The first ``cut`` steps are warm-up, and the profiler traces the
    last ``profiled`` steps. Before the traced steps, ``pairs`` steps with the profiler alternate
    with as many steps without it.
    """

    steps: int
    cut: int
    profiled: int = 0
    pairs: int = 0

    def outlined(self, step: int) -> bool:
        """Return whether the profiler runs in this step."""
        first = self.steps - self.profiled
        return step >= first or (first - 2 * self.pairs - 1 <= step and (first - step) % 2 == 0)


#: A calibration launch (pilot) has this many times the minimum number of timed steps of a timed
#: launch.
HORIZON = 2


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings with which a plan is measured. They do not identify the cases.

    ``steps`` is the smallest number of optimizer steps of a timed launch, and the first ``cut`` of
    them are warm-up. On devices whose clocks need time to settle, a launch warms up for at least
    ``cut_s`` seconds and is timed for at least ``kept_s`` seconds. Calibration launches (pilots)
    determine whether step time and noise require more steps, unless the numbers are ``fixed``.

    A block is one pass over the arms in order and one pass in reverse order, which gives two pairs
    per contrast. The judge evaluates the results after every block from ``min_blocks`` to
    ``max_blocks``. ``seed`` seeds the random order of launches.
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
        """Raise ValueError if the numbers of steps or blocks contradict each other."""
        if not (0 <= self.cut < self.steps and 0 <= self.min_blocks <= self.max_blocks):
            raise ValueError(
                f"a protocol needs 0 <= cut < steps and min_blocks <= max_blocks: {self}"
            )

    def lasting(self, window: Window, step_s: float) -> Window:
        """Return the window, lengthened to the minimum durations of the protocol.

        ``step_s`` is the time of a step in seconds.
        """
        cut = max(window.cut, math.ceil(self.cut_s / step_s))
        num_kept = max(window.steps - window.cut, math.ceil(self.kept_s / step_s))
        return replace(window, steps=cut + num_kept, cut=cut)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Arms that are measured in the same blocks, and the contrasts that are judged.

    ``epoch_samples`` is the number of samples in an epoch, if the recipe states it; reports then
    print the duration of an epoch. ``to_loss`` is a target loss in nats above the entropy floor of
    the data. If it is set, every launch trains all steps of the protocol, and the time to this loss
    is measured. ``target`` is the subject at a world size that is not launched; its speed is
    predicted from the launched sizes.
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
        """The name without the command of a user's script, which screens print separately."""
        name = self.name
        for case in (arm.case for arm in self.arms if arm.case.script):
            name = name.replace(f"+script={case.series['script']}", "")
        return name

    def arm(self, name: str) -> Arm:
        """Return the arm of this name.

        Raise AssertionError if the plan does not have exactly one arm of this name.
        """
        named = [a for a in self.arms if a.name == name]
        assert len(named) == 1, f"plan {self.name}: {len(named)} arms named {name!r}"
        return named[0]

    @property
    def judged_arms(self) -> list[Arm]:
        """The arms that every block launches.

        These are the arms that contrasts with ``curve=False`` need.
        """
        return list(self.only([c for c in self.contrasts if not c.curve]).arms) or list(self.arms)

    def num_first_launches(self, arms: Collection[Arm]) -> int:
        """Return the number of timed launches of these arms in the first ``min_blocks`` blocks."""
        judged = [arm for arm in self.judged_arms if arm in arms]
        blocks = self.protocol.min_blocks
        return 2 * ((len(arms) + (blocks - 1) * len(judged)) if blocks else 0)

    @property
    def window(self) -> Window:
        """The shortest window of a timed launch."""
        return Window(steps=self.protocol.steps, cut=self.protocol.cut)

    @property
    def in_pilots(self) -> bool:
        """Whether the arms run only in their pilots, so that no blocks are measured."""
        return not self.contrasts and self.protocol.max_blocks > self.protocol.min_blocks == 0

    @property
    def checks_only(self) -> bool:
        """Whether launches are only checked and compared, so that no blocks are measured."""
        return self.protocol.max_blocks == 0

    @property
    def pilot(self) -> Window:
        """The window of a pilot.

        It is longer than the window of a timed launch, so that rare events occur in it.
        """
        cut, steps = self.protocol.cut, self.protocol.steps
        if self.to_loss is not None or self.protocol.fixed or self.checks_only:
            return self.window
        return Window(steps=cut + HORIZON * (steps - cut), cut=cut)

    def profile(self, outline: bool) -> Window:
        """Return the window of a profiled launch.

        It includes steps without the profiler, with which the traced steps are compared.
        """
        cut = self.protocol.cut
        if outline:
            steps = cut + 2 * PAIRS + 1 + PROFILED
            return Window(steps=steps, cut=cut, profiled=PROFILED, pairs=PAIRS)
        return Window(steps=cut + UNPROFILED + 1 + PROFILED, cut=cut, profiled=PROFILED)

    def only(self, wanted: Collection[Contrast]) -> Plan:
        """Return the plan with only these contrasts and the arms that they need."""
        names = {contrast.subject for contrast in wanted} | {
            b for contrast in wanted for b in contrast.baseline
        }
        contrasts = tuple(contrast for contrast in self.contrasts if contrast in wanted)
        return replace(
            self, contrasts=contrasts, arms=tuple(arm for arm in self.arms if arm.name in names)
        )

    @cached_property
    def hash(self) -> str:
        """The hash of the content; equal plans are measured only once.

        A new field with a default does not change the hash of existing plans.
        """
        return digest(lean(self))
