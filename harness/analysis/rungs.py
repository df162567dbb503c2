"""Compare profiled world sizes with their baselines, to find the time lost in each budget term."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import geometric_mean, median

from harness.analysis.judging.caveats import PERTURBED
from harness.analysis.judging.points import budgets, shown_against, tabled
from harness.analysis.timeline.losses import Losses, losses
from harness.cases import Arm, CaseSpec, Contrast, Device, Mode, Plan, Role
from harness.record import Budget, Expected, LaunchRecord, Purpose, RunRecord


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One profiled world size of a scaling sweep and its baseline.

    ``against`` is the id of the baseline's case. ``expected`` is None for a user's script.
    ``perturbation`` is the factor by which the profiler lengthened steps, and ``changed`` its lower
    limit. ``timed_ns`` is the mean step of the timed launches, which are judged.
    ``timed_ideal_ns`` is that step under linear scaling. ``apart`` says that the profiled step is
    longer or shorter than all timed steps, so the profile does not explain the judged steps.
    """

    plan: Plan
    arm: Arm
    expected: Expected | None
    against: str
    launch: LaunchRecord
    budget: Budget
    losses: Losses
    perturbation: float
    changed: float
    timed_ns: float | None = None
    timed_ideal_ns: float | None = None
    apart: bool = False

    @property
    def efficiency(self) -> float:
        """The efficiency of the timed steps, or of the profiled steps if none was timed."""
        if self.timed_ns is None or self.timed_ideal_ns is None:
            return float(self.losses.efficiency)
        return self.timed_ideal_ns / self.timed_ns

    @property
    def explains(self) -> float | None:
        """The ratio of the profiled loss to the timed loss, or None if there was no loss."""
        if self.timed_ns is None or self.timed_ideal_ns is None:
            return None
        lost_ns = self.timed_ns - self.timed_ideal_ns
        profiled_ns = float(self.losses.step_ns - self.losses.ideal_ns)
        return profiled_ns / lost_ns if lost_ns > 0 else None

    @property
    def refused(self) -> bool:
        """Whether the profiler certainly changed the step too much to attribute losses."""
        return self.changed > PERTURBED

    @property
    def doubtful(self) -> bool:
        """Whether the profiler may have changed the step too much to attribute losses."""
        return self.perturbation > PERTURBED


def _typical(factors: Sequence[float]) -> float:
    """Return the larger of two factors, or the median of more than two."""
    return max(factors) if len(factors) < 3 else median(factors)


def shown(plan: Plan) -> Contrast | None:
    """Return the contrast of a sweep's largest world size with the baseline of its table."""
    against = shown_against(plan)
    contrasts = [
        contrast
        for contrast in tabled(plan)
        if contrast.against == against and len(contrast.baseline) == 1
    ]
    return max(
        contrasts, key=lambda contrast: plan.arm(contrast.subject).case.world_size, default=None
    )


def profiled(plan: Plan, num_plans: int) -> list[Arm]:
    """Return the arms of a plan that a run profiles.

    If a run has several plans, only the two arms of the contrast that is shown are profiled. Plans
    without such a contrast are then not profiled on GPUs.
    """
    arms = [arm for arm in plan.arms if arm.role not in (Role.ABLATION, Role.CONTROL)]
    contrast = shown(plan)
    on_gpus = any(arm.case.device is Device.CUDA for arm in arms)
    if num_plans == 1 or (contrast is None and not on_gpus):
        return arms
    if contrast is None:
        return []
    return [arm for arm in arms if arm.name in {contrast.subject, *contrast.baseline}]


def steps_s(run: RunRecord, case: CaseSpec) -> list[float]:
    """Return the mean step of each timed launch of a case, in s."""
    launches = [
        launch for launch in run.by_case.get(case.hash, ()) if launch.purpose is Purpose.TIMED
    ]
    return [
        launch.steps.mean_s for launch in launches if launch.steps is not None and launch.usable
    ]


def apart(launch: LaunchRecord, timed_s: Sequence[float]) -> bool:
    """Return whether a profiled step is outside of the range of the timed steps.

    The range is extended at both ends by the largest factor by which the profiler may lengthen
    steps.
    """
    if not timed_s or launch.budget is None:
        return False
    step_s = launch.budget.step_ns / 1e9
    return not min(timed_s) / PERTURBED <= step_s <= max(timed_s) * PERTURBED


def nearest(run: RunRecord, case: CaseSpec) -> LaunchRecord | None:
    """Return the profiled launch of a case whose step is closest to its timed steps."""
    launches = budgets(run, case)
    timed_s = steps_s(run, case)
    if not launches or not timed_s:
        return launches[0] if launches else None
    usual_s = geometric_mean(timed_s)
    return min(launches, key=lambda launch: abs(math.log(_step_s(launch) / usual_s)))


def _step_s(launch: LaunchRecord) -> float:
    assert launch.budget is not None
    return launch.budget.step_ns / 1e9


def rungs(run: RunRecord) -> list[Rung]:
    """Return the largest profiled world size of every scaling sweep."""
    return [*run.once("rungs", lambda: _rungs(run))]


def _rungs(run: RunRecord) -> list[Rung]:
    shown_rungs = (_rung(run, plan, c) for plan in run.plans if (c := shown(plan)) is not None)
    return [rung for rung in shown_rungs if rung is not None]


def _rung(run: RunRecord, plan: Plan, contrast: Contrast) -> Rung | None:
    """Return the comparison of a contrast's subject with its baseline.

    Return None if one of them was not profiled.
    """
    arm = plan.arm(contrast.subject)
    base = plan.arm(contrast.baseline[0])
    of_arm = nearest(run, arm.case)
    other = nearest(run, base.case)
    if of_arm is None or other is None or arm.case.hash == base.case.hash:
        return None
    assert of_arm.budget is not None and other.budget is not None
    ranks = Fraction(arm.case.world_size, base.case.world_size)
    expected, alone = (run.described[a.case.hash].expected for a in (arm, base))
    if expected is None or alone is None:  # For a script, the work per rank follows from the mode.
        work = Fraction(1) if arm.case.mode is Mode.WEAK else 1 / ranks
    else:
        work = Fraction(expected.global_batch, alone.global_batch) / ranks
    profiled = [*budgets(run, arm.case), *budgets(run, base.case)]
    timed_s = steps_s(run, arm.case)
    base_s = steps_s(run, base.case)
    return Rung(
        plan=plan,
        arm=arm,
        expected=expected,
        against=base.case.id,
        launch=of_arm,
        budget=of_arm.budget,
        losses=losses(other.budget, of_arm.budget, ranks=int(ranks), work=work),
        perturbation=_typical([launch.perturbation or 1.0 for launch in profiled]),
        changed=_typical([launch.changed for launch in profiled]),
        timed_ns=1e9 * geometric_mean(timed_s) if timed_s else None,
        timed_ideal_ns=1e9 * float(work) * geometric_mean(base_s) if base_s else None,
        apart=apart(of_arm, timed_s) or apart(other, base_s),
    )
