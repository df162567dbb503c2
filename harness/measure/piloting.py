"""Which pilots a plan wants, and the windows that they settle before the first launch counts."""

from collections.abc import Iterator, Sequence

from harness.analysis import packing
from harness.analysis.samples import pilots
from harness.measure.run import Run
from harness.record import Purpose
from harness.spec import Arm, Plan


def missing(
    run: Run, plan: Plan, slots: Sequence[Sequence[Arm]]
) -> Iterator[tuple[int, Sequence[Arm]]]:
    """(turn, arms at once) of every pilot still to be launched: each arm once.

    The first one twice (A/A), unless worlds run side by side: then the probes are the A/A. Plans
    share the pilots of a case that they measure alike.
    """
    if plan.hash in run.windows:
        return
    single = all(len(slot) == 1 for slot in slots)
    for slot in [*slots[:1], *slots] if single else slots:
        have = min(_count(run, plan, arm, Purpose.PILOT) for arm in slot)
        if have < (2 if single and slot is slots[0] else 1):
            yield have, slot


def probes(
    run: Run, plan: Plan, slots: Sequence[Sequence[Arm]], room: Sequence[int]
) -> Iterator[tuple[int, Sequence[Arm]]]:
    """(turn, arms at once) of every probe still to be launched, of baselines that get neighbours.

    Each runs alone, then on as many nodes and devices at once as there are: so a slow one is seen,
    too.
    """
    if plan.hash in run.windows:
        return
    baselines = {name for contrast in plan.contrasts for name in contrast.baseline}
    for arm in (a for slot in slots if len(slot) > 1 for a in slot if a.name in baselines):
        if not _count(run, plan, arm, Purpose.PROBE):
            yield 0, [arm]
        if _count(run, plan, arm, Purpose.PROBE) == 1:
            yield 1, [arm] * packing.copies(arm.case, room)


def _count(run: Run, plan: Plan, arm: Arm, purpose: Purpose) -> int:
    """How many there are of an arm's case, of all plans that measure it alike."""
    alike = {p.hash for p in run.plans if p.pilot == plan.pilot}
    return sum(
        x.purpose is purpose and x.case == arm.case.hash and x.plan in alike for x in run.launches
    )


def freeze(run: Run, plans: Sequence[Plan]) -> None:
    so_far = run.bare(complete=False)
    usable_pilots = pilots.read(so_far, run.folder)
    run.launch_sd = pilots.launch_sd(usable_pilots)
    new = [p for p in plans if p.hash not in run.windows]
    run.freeze({p.hash: pilots.windows(p, usable_pilots) for p in new})
