"""Which profiled launches a plan wants: one for each that is shown, more where a rule bounds a
share.
"""

from collections.abc import Iterator, Sequence

from harness.analysis import rungs
from harness.analysis.judging import pairs, verdicts
from harness.analysis.judging.verdicts import unconfirmed
from harness.cases import Arm, CaseSpec, Plan, metrics
from harness.measure import together
from harness.measure.session import Session
from harness.record import Block, LaunchStatus, Purpose, RunRecord


def missing(session: Session, plan: Plan, attempt: int = 0) -> Iterator[tuple[int, list[Arm]]]:
    """(turn, arms at once) of every profiled launch still to be made; attempt 1 confirms a FAIL.

    A launch is the unit of replication here too: where a rule looks at a share, its subject gets as
    many as a contrast has pairs. A case that an earlier plan has profiled is not profiled again for
    the sake of its budget alone, but once more where its profile shows another step than was timed.
    """
    wanted = _wanted(session.run.bare(), plan, attempt)
    for turn in sorted({turn for _, turn in wanted}):
        arms = [arm for arm, its_turn in wanted if its_turn == turn]
        yield from ((turn, slot) for slot in together.groups(session, plan, arms))


def behind(session: Session, plan: Plan, block: Block, turn: int, arms: Sequence[Arm]) -> set[str]:
    """The arms, by name, that are profiled behind the window of this launch: the last one of the
    blocks that every plan gets.

    Not those of which a rule judges a share of the step: their losses are compared with the
    reference's, too. Nor a user's own script.
    """
    run = session.run
    last = 2 * plan.protocol.min_blocks - 1
    if not session.settings.timeline or (block.attempt, turn) != (0, last):
        return set()
    done = {launch.case for launch in run.launches if launch.purpose is Purpose.PROFILE}
    apart = _shares(run.bare(complete=False), plan)
    return {
        arm.name
        for arm in rungs.profiled(plan, len(run.plans))
        if arm in arms
        and arm.name not in apart
        and arm.case.hash not in done
        and not arm.case.script
    }


def _shares(run: RunRecord, plan: Plan) -> dict[str, str]:
    """The contrasts whose shares of a step are judged, by name: the arm that each is about."""
    contrasts = pairs.judged_of(plan, run.thresholds, run.machine)
    return {c.subject: c.name for c in contrasts if metrics.metric(c.metric).profiled}


def _wanted(run: RunRecord, plan: Plan, attempt: int) -> list[tuple[Arm, int]]:
    judged = verdicts.of_plan(run, plan)
    looked_at = {
        verdict.contrast for verdict in (unconfirmed(judged) if attempt else judged) if verdict.rule
    }
    subjects = {arm for arm, contrast in _shares(run, plan).items() if contrast in looked_at}
    turns = []
    shown = rungs.profiled(plan, len(run.plans))
    for arm in (a for a in plan.arms if a in shown or a.name in subjects):
        profiled = [
            launch
            for launch in run.launches
            if launch.purpose is Purpose.PROFILE and launch.case == arm.case.hash
        ]
        if any(launch.status is not LaunchStatus.OK for launch in profiled):
            continue
        if arm.name in subjects:
            wanted = 2 * plan.protocol.min_blocks
            profiled = [
                launch
                for launch in profiled
                if launch.plan == plan.hash and launch.attempt == attempt
            ]
        else:
            again = bool(profiled) and not attempt and _strange(run, arm.case)
            wanted = 1 - attempt + again
        timed = [launch for launch in pairs.timed(run, plan) if launch.arm == arm.name]
        if timed and all(launch.usable for launch in timed):
            turns += [(arm, turn) for turn in range(len(profiled), wanted)]
    return turns


def _strange(run: RunRecord, case: CaseSpec) -> bool:
    """Whether even the best profile of a case shows a step that no timed launch took."""
    best = rungs.nearest(run, case)
    return best is not None and rungs.apart(best, rungs.steps_s(run, case))
