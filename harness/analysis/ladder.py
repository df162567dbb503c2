"""Compute the rows of reports: arms, and the world sizes of scaling sweeps."""

from collections import Counter
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median

from harness.analysis.judging.contrast_data import timed, values_of
from harness.analysis.judging.points import flops, mfu, points, roofline_mfu, throughput
from harness.analysis.results import Result, results_of
from harness.cases import Arm, CaseSpec, Plan, metrics
from harness.record import Described, LaunchRecord, RunRecord, ScalingPoint, Steps
from harness.record.outcome import SEVERITY


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """The summary of the timed launches of one arm; a field is None if it was not measured.

    Times are in s. ``step_s`` is the mean step, ``p95_s`` the largest 95th percentile of a launch,
    and ``worst_s`` the longest step. ``throughput`` is in samples/s. ``sent_bytes`` is the number
    of bytes that the busiest rank sends in a step. ``peak_bytes`` is the peak memory. ``flops`` is
    the FLOP/s of a rank. ``energy_j`` is the energy for a sample in J. ``growth`` is the growth of
    memory in B per step.
    """

    arm: Arm
    launches: tuple[LaunchRecord, ...]
    described: Described | None
    throughput: float | None
    step_s: float | None
    p95_s: float | None
    worst_s: float | None
    sent_bytes: float | None
    peak_bytes: float | None
    flops: float | None
    mfu: float | None
    roofline_mfu: float | None
    energy_j: float | None
    growth: float | None

    @property
    def case(self) -> CaseSpec:
        return self.arm.case

    @property
    def tokens_per_s(self) -> float | None:
        """The throughput in tokens/s, or None if a sample has a single token."""
        facts = self.described.facts if self.described else None
        if facts is None or facts.tokens_per_sample == 1 or self.throughput is None:
            return None
        return self.throughput * facts.tokens_per_sample

    @property
    def alike(self) -> int:
        """The largest number of launches with bit-identical losses."""
        counts = Counter(launch.losses for launch in self.launches)
        return max(counts.values(), default=0)

    @property
    def sent_of_form(self) -> float | None:
        """The ratio of bytes sent to the bytes that the closed form predicts."""
        expected = self.described.expected if self.described else None
        wanted = max(expected.sent_bytes) if expected else 0.0
        return self.sent_bytes / wanted if self.sent_bytes and wanted else None


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """The result at one world size: the summary of its arm, its scaling point, and its verdict.

    ``result`` is the worst result on speedup or efficiency with the same baseline, or None.
    ``wrapped`` is the efficiency relative to the same strategy on one rank.
    """

    row: ArmRow
    point: ScalingPoint
    result: Result | None
    wrapped: float | None

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The interval of the efficiency; the judged interval if a threshold judged it."""
        result = self.result
        if result is None or not result.rule or result.low is None or result.high is None:
            return self.point.efficiency_low, self.point.efficiency_high
        # A threshold on the speedup judges the same quantity on another scale.
        scale = self.point.efficiency / self.point.speedup if result.metric == "speedup" else 1.0
        return result.low * scale, result.high * scale


def arm_row(run: RunRecord, plan: Plan, arm: Arm) -> ArmRow:
    """Return the summary of the timed launches of an arm."""
    return run.once(("arm", plan.hash, arm.name), lambda: _arm_row(run, plan, arm))


def _arm_row(run: RunRecord, plan: Plan, arm: Arm) -> ArmRow:
    launches = [
        launch for launch in timed(run, plan) if launch.arm == arm.name and launch.steps is not None
    ]
    steps: list[Steps] = [launch.steps for launch in launches if launch.steps]
    sent = values_of(launches, "sent_bytes")
    peaks = values_of(launches, "peak_bytes")
    energy = values_of(launches, "energy_per_sample")
    growth = values_of(launches, "memory_growth")
    return ArmRow(
        arm=arm,
        launches=tuple(launches),
        described=run.described.get(arm.case.hash),
        throughput=throughput(run, plan, arm.name),
        step_s=geometric_mean(step.mean_s for step in steps) if steps else None,
        p95_s=max((step.p95_s for step in steps), default=None),
        worst_s=max((step.worst_s for step in steps), default=None),
        sent_bytes=max(sent, default=None),
        peak_bytes=max(peaks, default=None),
        flops=flops(run, plan, arm.name),
        mfu=mfu(run, plan, arm.name),
        roofline_mfu=roofline_mfu(run, plan, arm.name),
        energy_j=fmean(energy) if energy else None,
        growth=median(growth) if growth else None,
    )


def ladder_rows(run: RunRecord, plan: Plan) -> list[LadderRow]:
    """Return the world sizes of a plan that were measured, in the order of the plan."""
    return [*run.once(("ladder", plan.hash), lambda: _ladder_rows(run, plan))]


def _ladder_rows(run: RunRecord, plan: Plan) -> list[LadderRow]:
    wrapped = {p.case: p.efficiency for p in points(run, plan, "wrapped")}
    rows = []
    for point in points(run, plan):
        arm = next(a for a in plan.arms if a.case.id == point.case)
        of_point = [
            result
            for result in results_of(run, plan.hash)
            if result.case == point.case and in_table(result, point.against)
        ]
        of_point.sort(key=lambda result: (not result.rule, SEVERITY.index(result.status)))
        rows.append(
            LadderRow(
                row=arm_row(run, plan, arm),
                point=point,
                result=of_point[0] if of_point else None,
                wrapped=wrapped.get(point.case),
            )
        )
    return rows


def in_table(result: Result, against: str) -> bool:
    """Return whether the scaling table with this kind of baseline shows the value of a result."""
    return metrics.metric(result.metric).tabled and result.against == against
