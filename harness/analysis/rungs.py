"""Profiled rungs beside their baselines: what each lost, and to which term of the budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median

from harness.analysis.judging.doubts import PERTURBED
from harness.analysis.judging.points import budgets, shown_against, tabled
from harness.analysis.timeline.losses import Losses, losses
from harness.cases import Arm, Contrast, Mode, Plan, Role
from harness.record import Budget, Expected, LaunchRecord, RunRecord


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One profiled rung of a ladder and its baseline; nothing is ``expected`` of a script."""

    plan: Plan
    arm: Arm
    expected: Expected | None
    against: str
    launch: LaunchRecord
    budget: Budget
    losses: Losses
    perturbation: float
    changed: float

    @property
    def refused(self) -> bool:
        """Whether the profiler certainly changed too much to attribute anything."""
        return self.changed > PERTURBED

    @property
    def doubtful(self) -> bool:
        """Whether it may have."""
        return self.perturbation > PERTURBED


def _typical(factors: Sequence[float]) -> float:
    """The larger one of two launches; of more their median."""
    return max(factors) if len(factors) < 3 else median(factors)


def shown(plan: Plan) -> Contrast | None:
    """The largest rung of a ladder, against what its table is shown against."""
    against = shown_against(plan)
    contrasts = [c for c in tabled(plan) if c.against == against and len(c.baseline) == 1]
    return max(contrasts, key=lambda c: plan.arm(c.subject).case.world_size, default=None)


def profiled(plan: Plan, num_plans: int) -> list[Arm]:
    """The arms that a run of so many plans profiles: of several ladders those that it shows."""
    arms = [arm for arm in plan.arms if arm.role not in (Role.ABLATION, Role.CONTROL)]
    c = shown(plan)
    if num_plans == 1 or c is None:
        return arms
    return [arm for arm in arms if arm.name in {c.subject, *c.baseline}]


def rungs(run: RunRecord) -> list[Rung]:
    """The largest profiled rung of every ladder."""
    out = []
    for plan in run.plans:
        if (c := shown(plan)) is not None:
            arm = plan.arm(c.subject)
            base = plan.arm(c.baseline[0])
            of_arm = budgets(run, arm.case)
            other = budgets(run, base.case)
            if not of_arm or not other or arm.case.hash == base.case.hash:
                continue
            assert of_arm[0].budget is not None and other[0].budget is not None
            ranks = Fraction(arm.case.world_size, base.case.world_size)
            expected, alone = (run.described[a.case.hash].expected for a in (arm, base))
            if expected is None or alone is None:  # a script: a rank's work follows from the mode
                work = Fraction(1) if arm.case.mode is Mode.WEAK else 1 / ranks
            else:
                work = Fraction(expected.global_batch, alone.global_batch) / ranks
            seen = [*of_arm, *other]
            out.append(
                Rung(
                    plan=plan,
                    arm=arm,
                    expected=expected,
                    against=base.case.id,
                    launch=of_arm[0],
                    budget=of_arm[0].budget,
                    losses=losses(other[0].budget, of_arm[0].budget, ranks=int(ranks), work=work),
                    perturbation=_typical([x.perturbation or 1.0 for x in seen]),
                    changed=_typical([x.changed for x in seen]),
                )
            )
    return out
