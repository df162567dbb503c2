"""Which pilots a plan wants, and the windows that they settle before the first launch counts."""

from collections.abc import Iterator, Sequence

from harness.analysis.samples import pilots
from harness.measure.run import Run
from harness.record import Purpose
from harness.spec import Arm, Plan


def missing(run: Run, plan: Plan, arms: Sequence[Arm]) -> Iterator[tuple[Arm, int]]:
    """(arm, turn) of every pilot still to be launched: one each, the first arm's twice (A/A).

    Plans share the pilots of a case that they measure alike.
    """
    alike = {p.hash for p in run.plans if p.pilot == plan.pilot}
    for arm in [*arms[:1], *arms] if plan.hash not in run.windows else []:
        have = sum(
            x.purpose is Purpose.PILOT and x.case == arm.case.hash and x.plan in alike
            for x in run.launches
        )
        if have < (2 if arm is arms[0] else 1):
            yield arm, have


def freeze(run: Run, plans: Sequence[Plan]) -> None:
    so_far = run.bare(complete=False)
    usable_pilots = pilots.read(so_far, run.folder)
    run.launch_sd = pilots.launch_sd(usable_pilots)
    new = [p for p in plans if p.hash not in run.windows]
    run.freeze({p.hash: pilots.windows(p, usable_pilots) for p in new})
