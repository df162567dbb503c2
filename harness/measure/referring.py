"""Which references a plan wants: the losses that its timed launches are compared with."""

from collections.abc import Sequence

from harness.analysis.judging.obstacles import room
from harness.analysis.samples import references
from harness.measure.run import Run
from harness.spec import Arm, Plan, Role


def missing(run: Run, plan: Plan, arms: Sequence[Arm]) -> list[tuple[Arm, int]]:
    """(arm, steps) of every reference still to be launched; cases that train alike share one."""
    out: dict[str, tuple[Arm, int]] = {}
    for arm in arms:
        wanted = run.described[arm.case.hash].reference
        if wanted is None or arm.role is Role.ABLATION:
            continue
        steps = run.windows[plan.hash][arm.name].steps
        if run.settings.timeline:
            steps = max(steps, plan.profile.steps)
        if _known(run, arm) >= steps:
            continue
        ranks = max(arm.case.nodes) if wanted.shards > 1 else 1
        if room(wanted.memory_bytes, ranks, arm.case.device, run.machine):
            first, most = out.get(wanted.key, (arm, 0))
            out[wanted.key] = (first, max(steps, most))
        else:
            why = "the plain model does not fit in one device: losses are not compared"
            run.notes += [n for n in [f"{arm.case.id}: {why}"] if n not in run.notes]
    return list(out.values())


def _known(run: Run, arm: Arm) -> int:
    """Steps of the reference that is there; one that failed is not tried again."""
    launch = references.launch_of(run.launches, run.described, arm.case.hash)
    if launch is None:
        return 0
    curve = references.curve(run.folder, run.launches, run.described, arm.case.hash)
    return 2**31 if curve is None else len(curve.losses)
