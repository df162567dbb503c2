"""Which launches a plan wants next: checks, calibration, references, blocks and profiles."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.analysis import packing, rungs
from harness.analysis.judging import biases, blockers, contrast_data, verdicts
from harness.analysis.judging.blockers import room, too_large_for_one
from harness.analysis.judging.verdicts import unconfirmed, undecided
from harness.analysis.samples import calibration, references
from harness.base.formatting import duration
from harness.cases import Arm, CaseSpec, Device, Plan, Role, metrics
from harness.measure import together
from harness.measure.run import Run
from harness.measure.session import Session
from harness.record import Block, LaunchRecord, LaunchStatus, Purpose, Reason, RunRecord, Verdict

#: Few pairs tell little of their scatter: what promises to take so many times the blocks that are
#: left is begun all the same.
OPTIMISM = 2


def drawn(plan: Plan, attempt: int, number: int, slots: Sequence[Sequence[Arm]]) -> Block:
    """A block of these arms, those of a slot at once, in the order that the plan's seed draws."""
    block = Block(
        plan=plan.hash,
        attempt=attempt,
        number=number,
        arms=tuple(arm.name for slot in slots for arm in slot),
        together=tuple(map(len, slots)) if any(len(slot) > 1 for slot in slots) else (),
    )
    return block.drawn(plan.protocol.seed)


def missing_timed(run: Run, plan: Plan, block: Block) -> Iterator[tuple[int, list[Arm]]]:
    """(turn, arms that run at once) of every slot that is still to come, there and back."""
    done = {
        (launch.turn, launch.arm)
        for launch in run.timed(plan)
        if (launch.attempt, launch.block) == (block.attempt, block.number)
    }
    for turn, slot in block.passes:
        if left := [plan.arm(name) for name in slot if (turn, name) not in done]:
            yield turn, left


class NextBlock(NamedTuple):
    """A block of one plan: the arms that its open verdicts need, and whether their baselines have
    to run alone, since neighbours are the doubt.
    """

    plan: Plan
    arms: list[Arm]
    baselines_alone: bool


def next_block(
    run: Run, plans: Sequence[Plan], arms: Mapping[str, Sequence[Arm]], limit_s: float | None
) -> NextBlock | None:
    """The block that decides a verdict soonest, by the scatter of its plan's pairs so far.

    None when nothing is open that the blocks left promise to decide, or no time is left. ``arms``
    maps a plan's hash to the arms that it is timed with.
    """
    ranked: list[tuple[float, float, NextBlock]] = []
    bare = run.bare()
    for plan in plans:
        blocks_left = plan.protocol.max_blocks - len(run.blocks_of(plan))
        if not arms[plan.hash] or blocks_left <= 0 or not run.blocks_of(plan):
            continue
        still_open = [
            verdict
            for verdict in undecided(bare, plan)
            if _blocks(verdict) <= OPTIMISM * blocks_left
        ]
        more = needed(run, plan, still_open, arms[plan.hash])
        block_s = run.block_s([[arm] for arm in more])
        if more and run.in_time(block_s, limit_s):
            alone = any(verdict.reason is Reason.NEIGHBOURS for verdict in still_open)
            soonest_s = min(map(_blocks, still_open)) * block_s
            ranked.append((soonest_s, -_widest(still_open), NextBlock(plan, more, alone)))
    return min(ranked, key=lambda r: r[:2])[2] if ranked else None


def _blocks(v: Verdict) -> float:
    """How many more blocks would decide it; where neighbours are in doubt, one shows it."""
    return 1 if v.more is None else math.ceil(v.more / 2)


def needed(run: Run, plan: Plan, open_: Sequence[Verdict], arms: Sequence[Arm]) -> list[Arm]:
    """The arms that the contrasts of these verdicts rest on."""
    names = {verdict.contrast for verdict in open_}
    contrasts = [contrast for contrast in run.contrasts_of(plan) if contrast.name in names]
    wanted = {arm.name for arm in plan.only(contrasts).arms}
    return [arm for arm in arms if arm.name in wanted]


def _widest(still_open: Sequence[Verdict]) -> float:
    widths = [
        math.log(verdict.high / verdict.low)
        for verdict in still_open
        if verdict.low and verdict.high and verdict.low > 0
    ]
    return max(widths, default=0.0)


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
            problem = blockers.gate_failure(gated[arm.case.hash])
            if problem is None:
                right.add(arm.name)
            elif arm.role is not Role.CONTROL:
                session.progress.note(f"{arm.case.id}: {problem}")
                ended.add(arm.case.strategy)
    return right


def _possible(session: Session, arm: Arm) -> bool:
    """Whether a case can run here at all."""
    answer = session.run.described[arm.case.hash]
    fits = blockers.fits(answer, arm.case, session.run.machine)
    return fits and not answer.error and not answer.unsupported


def missing_pilots(
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
        if calibration.unsettled(
            plan, arm, calibration.read(run.bare(complete=False), run.folder, plan)
        ):
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
        if probes and (alone := sum(not probe.slot for probe in probes)) < biases.PROBES:
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
    usable_pilots = calibration.read(so_far, run.folder)
    run.launch_sd = calibration.launch_sd(usable_pilots)
    new = [plan for plan in plans if plan.hash not in run.windows]
    run.freeze({plan.hash: calibration.windows(plan, usable_pilots, run.described) for plan in new})


def missing_profiles(
    session: Session, plan: Plan, attempt: int = 0
) -> Iterator[tuple[int, list[Arm]]]:
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
    contrasts = contrast_data.judged_of(plan, run.thresholds, run.machine)
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
        timed = [launch for launch in contrast_data.timed(run, plan) if launch.arm == arm.name]
        if timed and all(launch.usable for launch in timed):
            turns += [(arm, turn) for turn in range(len(profiled), wanted)]
    return turns


def _strange(run: RunRecord, case: CaseSpec) -> bool:
    """Whether even the best profile of a case shows a step that no timed launch took."""
    best = rungs.nearest(run, case)
    return best is not None and rungs.apart(best, rungs.steps_s(run, case))


@dataclass(frozen=True)
class Wanted:
    """A reference that is still to be launched; ``streamed`` where the model is too large.

    ``replicates`` of it show how much rounding changes a loss.
    """

    arm: Arm
    steps: int
    streamed: bool
    replicates: int


def missing_references(
    session: Session, plan: Plan, arms: Sequence[Arm], *, replicated: bool = False
) -> Iterator[tuple[list[Arm], Wanted]]:
    """Arms at once, and what is wanted of them: every launch of references that is still to come.

    Of those that go together the first stands for all, with the most steps. ``replicated``: they
    get replicates, since a launch was further off than sums in another order explain.
    """
    wanted = _referring_wanted(session.run, plan, arms, replicated)
    for streamed, replicates in itertools.product((False, True), (0, references.REPLICATES)):
        alike = {
            w.arm.name: w for w in wanted if w.streamed is streamed and w.replicates == replicates
        }
        worlds = [replace(w.arm, case=_world(session.run, w)) for w in alike.values()]
        # A streamed one holds all of its model in the host's memory: there is room for one.
        slots = [[arm] for arm in worlds] if streamed else together.groups(session, plan, worlds)
        for slot in slots:
            steps = max(alike[arm.name].steps for arm in slot)
            arms = [alike[arm.name].arm for arm in slot]
            yield arms, replace(alike[slot[0].name], steps=steps)


def _referring_wanted(run: Run, plan: Plan, arms: Sequence[Arm], replicated: bool) -> list[Wanted]:
    """Every reference that is not there; cases that train alike share one."""
    by_key: dict[str, Wanted] = {}
    for arm in arms:
        wanted = run.described[arm.case.hash].reference
        if wanted is None or arm.role is Role.ABLATION:
            continue
        steps = run.windows[plan.hash][arm.name].steps
        if run.settings.timeline:
            steps = max(steps, plan.profile(run.settings.outline).steps)
        streamed = too_large_for_one(run.described[arm.case.hash], arm.case, run.machine)
        if streamed:
            steps = min(steps, references.STREAMED_STEPS)
        replicates = _replicates(run, wanted.key) if replicated and not streamed else 0
        if _known(run, arm, replicates) >= steps:
            continue
        if streamed and not _host_holds(run, arm):
            _note(run, arm, "the plain model does not fit here: losses are not compared")
            continue
        if streamed:
            what = f"the losses of the first {steps} steps are compared"
            _note(run, arm, f"the plain model does not fit in one device: {what}")
        known = by_key.get(wanted.key, Wanted(arm, 0, streamed, replicates))
        by_key[wanted.key] = replace(known, steps=max(steps, known.steps))
    return list(by_key.values())


def _world(run: Run, wanted: Wanted) -> CaseSpec:
    """Where a reference trains: it takes fewer devices than what is compared with it."""
    case = wanted.arm.case
    return references.world(case, run.described[case.hash], wanted.streamed)


def _replicates(run: Run, key: str) -> int:
    """How many replicates a reference has: none if all bits of all its cases must be equal."""
    trained_so = (
        described.reference
        for described in run.described.values()
        if described.reference is not None
    )
    rounded = any(reference.limit for reference in trained_so if reference.key == key)
    return references.REPLICATES if rounded else 0


def _host_holds(run: Run, arm: Arm) -> bool:
    """Whether weights, gradients and moments fit in the host's memory, and no codec is in the way:
    it would have to see all shards at once.
    """
    facts = run.described[arm.case.hash].facts
    assert facts is not None
    return arm.case.compressor is None and room(16 * facts.num_params, 1, Device.CPU, run.machine)


def _note(run: Run, arm: Arm, text: str) -> None:
    run.notes += [note for note in [f"{arm.case.id}: {text}"] if note not in run.notes]


def _known(run: Run, arm: Arm, replicates: int) -> int:
    """Steps of the reference that is there; one that failed is not tried again.

    One without replicates is none for a case that needs them: else its limit would be 2 %.
    """
    launch = references.launch_of(run.launches, run.described, arm.case.hash)
    if launch is None:
        return 0
    curve = references.curve(run.folder, run.launches, run.described, arm.case.hash)
    if curve is None:
        return 2**31
    return 0 if replicates and curve.replicates is None else len(curve.losses)


#: Runs that are shorter show all their verdicts soon enough.
LONG_S = 600.0


def ordered(plans: Sequence[Plan]) -> list[Plan]:
    """The plans in the order in which a run measures them.

    Dense training comes before codecs, which are compared with it. Stand-ins say nothing of
    hardware and come last, as do controls.
    """
    return sorted(plans, key=lambda plan: (_stands_in(plan), _encodes(plan)))


def _stands_in(plan: Plan) -> bool:
    return any(arm.case.stand_in for arm in plan.arms) or not plan.protocol.max_blocks


def _encodes(plan: Plan) -> bool:
    return any(arm.case.compressor for arm in plan.arms)


def first_verdict(verdicts: Sequence[Verdict], elapsed_s: float) -> str | None:
    """The first plan's result, of its largest world; None where nothing was measured.

    It is said as it stands: more blocks, or a fresh set, may still change the word.
    """
    ruled = [
        verdict for verdict in verdicts if verdict.rule is not None and verdict.value is not None
    ]
    if not ruled:
        return None
    largest = ruled[-1]
    figure = f"{largest.metric} {largest.value:.2f}"
    if largest.low is not None:
        figure += f" [{largest.low:.2f}, {largest.high:.2f}]"
    when = duration(elapsed_s)
    return f"after {when}: {largest.case} {figure}, needs {largest.bound}: so far {largest.status}"
