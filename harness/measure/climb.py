"""The climb: every case is gated before it is timed, smallest worlds first."""

from collections.abc import Callable, Sequence

from harness.analysis.judging import obstacles
from harness.cases import Arm, Plan, Role
from harness.measure import together
from harness.measure.session import Session
from harness.record import LaunchRecord


def climb(
    session: Session, plan: Plan, gate: Callable[[Sequence[Arm]], list[LaunchRecord]]
) -> list[Arm]:
    """The arms that are worth timing: right, and needed by a contrast whose arms all are.

    A plan that compares nothing in the same blocks trains all that are right, in pilots.

    The climb of a strategy ends at its first wrong rung: the larger ones are not launched, but for
    those that ran beside that one.
    """
    run = session.run
    session.describe([a.case for a in plan.arms] + ([plan.target] if plan.target else []))
    arms = sorted(plan.arms, key=lambda a: a.case.world_size)
    possible = [a for a in arms if _possible(session, a)]
    checked = [a for a in possible if a.role is not Role.ABLATION and not a.case.script]
    right = {a.name for a in possible} - {a.name for a in checked}
    right |= _right(session, plan, checked, gate)
    if plan.protocol.max_blocks == 0 or not all(launch.usable for launch in run.timed(plan)):
        return []  # only gated; or it failed before this run was resumed
    if plan.in_pilots:
        return [a for a in plan.arms if a.name in right]
    needed = {
        name
        for contrast in run.contrasts_of(plan)
        if {contrast.subject, *contrast.baseline} <= right
        for name in (contrast.subject, *contrast.baseline)
    }
    return [a for a in plan.arms if a.name in needed]


def _right(
    session: Session,
    plan: Plan,
    checked: Sequence[Arm],
    gate: Callable[[Sequence[Arm]], list[LaunchRecord]],
) -> set[str]:
    """The names of those whose gate lets them through; launches it where it was not yet."""
    gated = dict(session.run.bare(complete=False).gates)
    right = set[str]()
    ended = set[str]()
    for slot in together.groups(session, plan, checked):
        new = {a.case.hash: a for a in slot if a.case.strategy not in ended}
        missing = [a for case, a in new.items() if case not in gated]
        gated |= {launch.case: launch for launch in (gate(missing) if missing else ())}
        for arm in (a for a in slot if a.case.hash in gated and a.case.strategy not in ended):
            problem = obstacles.gate_failure(gated[arm.case.hash])
            if problem is None:
                right.add(arm.name)
            elif arm.role is not Role.CONTROL:
                session.progress.note(f"{arm.case.id}: {problem}")
                ended.add(arm.case.strategy)
    return right


def _possible(session: Session, arm: Arm) -> bool:
    """Whether a case can run here at all."""
    answer = session.run.described[arm.case.hash]
    fits = obstacles.fits(answer, arm.case, session.run.machine)
    return fits and not answer.error and not answer.unsupported
