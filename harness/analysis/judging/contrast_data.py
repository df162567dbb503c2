"""The data of a contrast: its pairs of launches and the values that the judge reads from them.

A contrast is the ratio of a metric between two arms, or the value of one arm. An arm is a case in
its role in a comparison. A pair consists of one launch of the subject and one launch of each arm of
the baseline.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.analysis.judging.attained import allowed
from harness.analysis.judging.factors import figure
from harness.cases import Arm, CaseSpec, Contrast, Form, Plan, Role, Statistic, Threshold, metrics
from harness.host.machine import Machine
from harness.record import LaunchRecord, Purpose, RunRecord


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The values of a contrast, one for each turn, and the names of the launches they come from.

    A value is the ratio of the subject to the baseline, or the subject's value if there is no
    baseline. A turn is one pass over the arms of a plan. No turn is ever dropped: if one of its
    launches failed, the contrast becomes an error (``blockers``).
    """

    values: tuple[float, ...] = ()
    launches: tuple[str, ...] = ()


def timed(
    run: RunRecord, plan: Plan, attempt: int | None = 0, purpose: Purpose = Purpose.TIMED
) -> list[LaunchRecord]:
    """Return the plan's launches with this purpose, in the order of measurement.

    ``attempt`` is 0 for the first measurement and 1 for the fresh set that confirms a FAIL. None
    selects both.
    """
    return [
        launch
        for launch in run.by_plan.get(plan.hash, ())
        if launch.purpose is purpose and attempt in (None, launch.attempt)
    ]


def purpose_of(metric: str) -> Purpose:
    """Return the purpose of the launches from which a metric is read.

    Shares of a step are read from profiled launches. All other metrics are read from timed
    launches, because the profiler changes the speed.
    """
    return Purpose.PROFILE if metrics.metric(metric).profiled else Purpose.TIMED


def ideal(run: RunRecord, plan: Plan, contrast: Contrast) -> float | None:
    """Return the ratio under perfect scaling, or None if it needs a sweep that was not made.

    For most metrics, perfect scaling is linear. For some, it is the best ratio that the pipeline
    schedule or the measured fabric allows.
    """
    metric = metrics.metric(contrast.metric)
    by_ranks = contrast.ideal
    if metric.of_schedule:
        expected = run.described[plan.arm(contrast.subject).case.hash].expected
        by_ranks *= expected.ideal_efficiency if expected else 1.0
    if not metric.of_fabric:
        return by_ranks
    possible = allowed(run, plan, contrast)
    return None if possible is None else by_ranks * possible


def pairs(
    run: RunRecord,
    plan: Plan,
    contrast: Contrast,
    statistic: Statistic = Statistic.MEAN,
    attempt: int = 0,
) -> Pairs:
    """Return the contrast's values in all turns that measured all of its arms.

    Return no values if one launch of these arms failed, did not run as planned, or lacks the
    metric. A mean over the other launches would hide the problem.
    """
    metric = metrics.metric(contrast.metric)
    tail = statistic is Statistic.P95
    names = (contrast.subject, *contrast.baseline)
    perfect = ideal(run, plan, contrast)
    if perfect is None:
        return Pairs()
    by_turn: dict[int, dict[str, LaunchRecord]] = {}
    for launch in timed(run, plan, attempt, purpose_of(contrast.metric)):
        if launch.arm in names:
            if not launch.usable:
                return Pairs()
            by_turn.setdefault(launch.turn, {})[launch.arm] = launch
    values, launches = [], []
    for _, arms in sorted(by_turn.items()):
        if any(name not in arms for name in names):
            continue
        subject, *below = (
            figure(run, plan.arm(name).case, arms[name], metric, tail=tail) for name in names
        )
        base = math.fsum(b or 0.0 for b in below)
        ratio = metric.form is not Form.ABSOLUTE
        if subject is None or None in below or (ratio and (base <= 0 or subject <= 0)):
            return Pairs()
        values.append(subject / base / perfect if ratio else subject)
        launches += [arms[name].launch for name in names]
    return Pairs(values=tuple(values), launches=tuple(dict.fromkeys(launches)))


def like_launches_sd(launches: Sequence[LaunchRecord]) -> float | None:
    """Return the relative standard deviation between launches of one arm in one block.

    Every block launches each arm more than once, so this A/A comparison costs no extra launches. It
    uses the median of the differences, because a single bad launch hardly changes a median. Two
    calibration launches of a case count as a block. Return None if no block has two such launches.
    """
    alike: dict[tuple[str, Purpose, int, int], list[float]] = {}
    for launch in launches:
        if (rate := launch.throughput) is not None and rate > 0:
            alike.setdefault(
                (launch.case, launch.purpose, launch.attempt, launch.block), []
            ).append(math.log(rate))
    apart = [abs(v[0] - v[1]) for v in alike.values() if len(v) > 1]
    # The median of |N(0, 2 sd^2)|, the difference of two launches, is 0.6745 sqrt(2) sd.
    return statistics.median(apart) / (0.6745 * math.sqrt(2)) if apart else None


def absolute(metric: str, arm: str) -> Contrast:
    """Return a contrast without a baseline, whose value is the metric's value in an arm."""
    name = f"{metric}{'' if arm.startswith('@') else '@'}{arm}"
    return Contrast(name=name, metric=metric, subject=arm, baseline=(), against="nothing")


def ruled(plan: Plan, thresholds: Sequence[Threshold], machine: Machine) -> bool:
    """Return whether a threshold applies to a plan."""
    return any(
        rule.matches(plan.arm(contrast.subject).case, contrast, machine)
        for contrast in judged_of(plan, thresholds, machine)
        for rule in thresholds
    )


def judged_of(
    plan: Plan, thresholds: Sequence[Threshold], machine: Machine
) -> tuple[Contrast, ...]:
    """Return the contrasts by which a plan is judged.

    They are the planned contrasts, and one for each absolute threshold that applies to a subject.
    An absolute threshold, for example on memory, bytes or a rate, needs no baseline. The plan
    therefore need not contain a contrast for it.
    """
    contrasts = list(plan.contrasts)
    for rule in thresholds:
        metric = metrics.metric(rule.metric)
        if metric.form is not Form.ABSOLUTE or metric.measured_by:
            continue
        for arm in plan.arms:
            contrast = absolute(rule.metric, arm.name)
            alone = arm.case.world_size == 1 and metric.between_ranks
            wanted = arm.role is Role.SUBJECT and rule.matches(arm.case, contrast, machine)
            if wanted and not alone and contrast not in contrasts:
                contrasts.append(contrast)
    return tuple(contrasts)


def values_of(launches: Sequence[LaunchRecord], metric: str) -> list[float]:
    """Return the values of a metric in the launches that measured it."""
    values = (launch.value(metrics.metric(metric)) for launch in launches)
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class ContrastData:
    """A contrast of a plan in a run, with the launches of its arms in both attempts.

    ``pilots`` are the calibration launches, which several plans can use. ``launches`` are the timed
    or profiled launches from which the metric is read.
    """

    run: RunRecord
    plan: Plan
    contrast: Contrast
    pilots: Sequence[LaunchRecord]
    launches: Sequence[LaunchRecord]

    @classmethod
    def of(cls, run: RunRecord, plan: Plan, contrast: Contrast) -> "ContrastData":
        names = {contrast.subject, *contrast.baseline}
        purpose = purpose_of(contrast.metric)
        of_plan = run.by_plan.get(plan.hash, ())
        return cls(
            run=run,
            plan=plan,
            contrast=contrast,
            pilots=run.pilots_of({plan.arm(name).case.hash for name in names}),
            launches=[
                launch for launch in of_plan if launch.purpose is purpose and launch.arm in names
            ],
        )

    @cached_property
    def arms(self) -> Sequence[Arm]:
        """Return the arm of the subject, then those of the baseline."""
        return [self.plan.arm(name) for name in (self.contrast.subject, *self.contrast.baseline)]

    @property
    def subject(self) -> CaseSpec:
        """Return the case that is judged."""
        return self.arms[0].case

    @property
    def all_launches(self) -> Sequence[LaunchRecord]:
        """Return the pilots, then the launches from which the metric is read."""
        return [*self.pilots, *self.launches]

    @property
    def slowed_on_purpose(self) -> bool:
        """Return whether an arm has injected stragglers, which a CPU quota slows down."""
        return any(arm.case.slowed for arm in self.arms)

    def timed_of(self, names: Iterable[str]) -> list[LaunchRecord]:
        """Return the timed launches of the arms with these names."""
        wanted = set(names)
        of_plan = self.run.by_plan.get(self.plan.hash, ())
        return [
            launch for launch in of_plan if launch.purpose is Purpose.TIMED and launch.arm in wanted
        ]

    def pilots_of(self, names: Iterable[str]) -> Sequence[LaunchRecord]:
        """Return the pilots of the arms with these names."""
        return self.run.pilots_of({self.plan.arm(name).case.hash for name in names})
