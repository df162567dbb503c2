"""The climb: every case is gated before it is timed, smallest world first."""

from collections.abc import Callable

from harness.analysis.judging import obstacles
from harness.analysis.judging.pairs import gates
from harness.measure.session import Session
from harness.record import LaunchRecord
from harness.spec import Arm, Plan, Role


def climb(session: Session, plan: Plan, gate: Callable[[Arm], LaunchRecord]) -> list[Arm]:
    """The arms that are worth timing: right, and needed by a contrast whose arms all are.

    The climb of a strategy ends at its first wrong rung: the larger ones are not launched.
    """
    run = session.run
    session.describe([a.case for a in plan.arms])
    gated = dict(gates(run.bare(complete=False)))
    right, ended = set(), set()
    for arm in sorted(plan.arms, key=lambda a: a.case.world_size):
        answer = run.described[arm.case.hash]
        unfit = not obstacles.fits(answer, arm.case, run.machine)
        if answer.error or answer.unsupported or unfit or arm.case.strategy in ended:
            continue
        if arm.role is Role.ABLATION:
            right.add(arm.name)  # wrong on purpose; timed only beside the arm it ablates
            continue
        if arm.case.hash not in gated:
            gated[arm.case.hash] = gate(arm)
        problem = obstacles.gate_failure(gated[arm.case.hash])
        if problem is None:
            right.add(arm.name)
        elif arm.role is not Role.CONTROL:
            session.progress.note(f"{arm.case.id}: {problem}")
            ended.add(arm.case.strategy)
    if plan.protocol.max_blocks == 0 or not all(x.usable for x in run.timed(plan)):
        return []  # only gated; or it failed before this run was resumed
    needed = {
        name
        for c in run.contrasts_of(plan)
        if {c.subject, *c.baseline} <= right
        for name in (c.subject, *c.baseline)
    }
    return [a for a in plan.arms if a.name in needed]
