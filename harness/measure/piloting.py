"""Which pilots a plan wants, and the windows that they settle before the first launch counts."""

from collections.abc import Callable, Iterator, Sequence

from harness.analysis import packing
from harness.analysis.judging import neighbours
from harness.analysis.samples import pilots
from harness.cases import Arm, Plan
from harness.measure.run import Run
from harness.record import Purpose


def missing(
    run: Run, plan: Plan, slots: Callable[[], Sequence[Sequence[Arm]]]
) -> Iterator[tuple[Purpose, int, Sequence[Arm]]]:
    """(purpose, turn, arms at once) of every probe and pilot still to be launched.

    ``slots`` says which arms run side by side; probes may change that.
    """
    for turn, arms in _probes(run, plan, slots()):
        yield Purpose.PROBE, turn, arms
    for turn, arms in _pilots(run, plan, slots()):
        yield Purpose.PILOT, turn, arms


def _pilots(
    run: Run, plan: Plan, slots: Sequence[Sequence[Arm]]
) -> Iterator[tuple[int, Sequence[Arm]]]:
    """Each arm once, and again where its warm-up is in doubt.

    Then the first one once more (A/A), unless worlds run side by side: then the probes are the A/A.
    It is the last, so that a short budget, or a script that is wrong, has seen every world. Plans
    share the pilots of a case that they measure alike.
    """
    if plan.hash in run.windows:
        return
    single = all(len(slot) == 1 for slot in slots)
    for slot in [*slots, *slots[:1]] if single else slots:
        have = min(_count(run, plan, arm, Purpose.PILOT) for arm in slot)
        if have < (2 if single and slot is slots[0] else 1):
            yield have, slot
    for (arm,) in slots if single else ():
        if pilots.unsettled(plan, arm, pilots.read(run.bare(complete=False), run.folder, plan)):
            yield 1, [arm]


def _probes(
    run: Run, plan: Plan, slots: Sequence[Sequence[Arm]]
) -> Iterator[tuple[int, Sequence[Arm]]]:
    """The probes of baselines that get neighbours, each with its number.

    Each runs alone, then on as many nodes and devices at once as there are: so a slow one is seen,
    too.
    """
    if plan.hash in run.windows:
        return
    if any(contrast.curve for contrast in plan.contrasts):
        yield from _scan(run, plan)
        return
    baselines = {name for contrast in plan.contrasts for name in contrast.baseline}
    for arm in (a for slot in slots if len(slot) > 1 for a in slot if a.name in baselines):
        if not _count(run, plan, arm, Purpose.PROBE):
            yield 0, [arm]
        if _count(run, plan, arm, Purpose.PROBE) == 1:
            yield 1, [arm] * packing.copies(arm.case, run.settings.nodes)


def _scan(run: Run, plan: Plan) -> Iterator[tuple[int, Sequence[Arm]]]:
    """The baseline of one device on all devices at once, once in a run: a slow device is seen.

    No more is probed of such a plan: its baseline has neighbours in the first block, and none in
    the others.
    """
    baselines = {name for contrast in plan.contrasts for name in contrast.baseline}
    for arm in (arm for arm in plan.arms if arm.name in baselines and arm.case.world_size == 1):
        copies = packing.copies(arm.case, run.settings.nodes)
        if copies > 1 and not any(launch.purpose is Purpose.PROBE for launch in run.launches):
            yield 1, [arm] * copies
        return


def probe_again(run: Run, arms: Sequence[Arm]) -> tuple[int, Arm] | None:
    """(turn, baseline) of a further probe, where only neighbours are in doubt; None after the last.

    That takes one launch, and a block that runs one by one takes several.
    """
    for arm in arms:
        probes = [
            launch
            for launch in run.launches
            if launch.purpose is Purpose.PROBE and launch.case == arm.case.hash
        ]
        if probes and (alone := sum(not probe.slot for probe in probes)) < neighbours.PROBES:
            return 1 + alone, arm
    return None


def _count(run: Run, plan: Plan, arm: Arm, purpose: Purpose) -> int:
    """How many there are of an arm's case, of all plans that measure it alike."""
    alike = {p.hash for p in run.plans if p.pilot == plan.pilot}
    return sum(
        launch.purpose is purpose and launch.case == arm.case.hash and launch.plan in alike
        for launch in run.launches
    )


def freeze(run: Run, plans: Sequence[Plan]) -> None:
    so_far = run.bare(complete=False)
    usable_pilots = pilots.read(so_far, run.folder)
    run.launch_sd = pilots.launch_sd(usable_pilots)
    new = [plan for plan in plans if plan.hash not in run.windows]
    run.freeze({plan.hash: pilots.windows(plan, usable_pilots, run.described) for plan in new})
