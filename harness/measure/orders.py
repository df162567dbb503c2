"""The next launches of a plan: checks, calibration, references, blocks and profiles."""

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

#: Factor by which the predicted number of blocks may exceed the number of blocks that are left. The
#: factor is above 1 because a few pairs give only a rough estimate of the scatter.
OPTIMISM = 2


def drawn(plan: Plan, attempt: int, number: int, slots: Sequence[Sequence[Arm]]) -> Block:
    """Return a block of these arms in the order that the plan's seed draws.

    Each element of ``slots`` lists the arms that run concurrently.
    """
    block = Block(
        plan=plan.hash,
        attempt=attempt,
        number=number,
        arms=tuple(arm.name for slot in slots for arm in slot),
        together=tuple(map(len, slots)) if any(len(slot) > 1 for slot in slots) else (),
    )
    return block.drawn(plan.protocol.seed)


def missing_timed(run: Run, plan: Plan, block: Block) -> Iterator[tuple[int, list[Arm]]]:
    """Yield (turn, concurrent arms) of every launch of a block that is still missing.

    A block launches its groups of concurrent arms in order, and then in reverse order.
    """
    done = {
        (launch.turn, launch.arm)
        for launch in run.timed(plan)
        if (launch.attempt, launch.block) == (block.attempt, block.number)
    }
    for turn, slot in block.passes:
        if left := [plan.arm(name) for name in slot if (turn, name) not in done]:
            yield turn, left


class NextBlock(NamedTuple):
    """The next block of one plan.

    ``arms`` are the arms that its undecided verdicts need. ``baselines_alone`` is set if the effect
    of concurrent worlds on the baselines is the open question, so that baselines must run alone.
    """

    plan: Plan
    arms: list[Arm]
    baselines_alone: bool


def next_block(
    run: Run, plans: Sequence[Plan], arms: Mapping[str, Sequence[Arm]], limit_s: float | None
) -> NextBlock | None:
    """Return the block that is predicted to decide a verdict soonest.

    The prediction is based on the scatter of the pairs so far. Return None if the remaining blocks
    cannot decide an open verdict, or if no time is left. ``arms`` maps a plan's hash to the arms
    that it is timed with.
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
    """Return the predicted number of further blocks that are needed to decide a verdict.

    The number is one if only the effect of concurrent worlds is uncertain.
    """
    return 1 if v.more is None else math.ceil(v.more / 2)


def needed(run: Run, plan: Plan, open_: Sequence[Verdict], arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms that the contrasts of these verdicts depend on."""
    names = {verdict.contrast for verdict in open_}
    contrasts = [contrast for contrast in run.contrasts_of(plan) if contrast.name in names]
    wanted = {arm.name for arm in plan.only(contrasts).arms}
    return [arm for arm in arms if arm.name in wanted]


def _widest(still_open: Sequence[Verdict]) -> float:
    """Return the width of the widest interval of these verdicts: the logarithm of high / low."""
    widths = [
        math.log(verdict.high / verdict.low)
        for verdict in still_open
        if verdict.low and verdict.high and verdict.low > 0
    ]
    return max(widths, default=0.0)


def climb(
    session: Session, plan: Plan, gate: Callable[[Sequence[Arm]], list[LaunchRecord]]
) -> list[Arm]:
    """Run the correctness checks of a plan; return the arms that are worth timing.

    An arm is worth timing if a contrast uses it and all arms of that contrast train correctly. A
    plan that compares nothing in the same blocks trains every arm that is correct, in calibration
    launches.

    For each strategy, checks go from the smallest world size up and end at the first failure.
    Larger worlds are then not launched, except those that already ran concurrently with the failed
    one.
    """
    run = session.run
    session.describe([a.case for a in plan.arms] + ([plan.target] if plan.target else []))
    arms = sorted(plan.arms, key=lambda a: a.case.world_size)
    possible = [a for a in arms if _possible(session, a)]
    checked = [a for a in possible if a.role is not Role.ABLATION and not a.case.script]
    right = {a.name for a in possible} - {a.name for a in checked}
    right |= _right(session, plan, checked, gate)
    if not all(launch.usable for launch in run.timed(plan)):
        return []  # a launch failed before this run was resumed
    if plan.checks_only:
        return [a for a in possible if a.case.script]  # their checks are made in pilots
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
    """Return the names of the arms that pass their correctness check; launch the missing checks."""
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
    """Return whether a case can run on this machine at all."""
    answer = session.run.described[arm.case.hash]
    fits = blockers.fits(answer, arm.case, session.run.machine)
    return fits and not answer.refused


def missing_pilots(
    run: Run, plan: Plan, slots: Callable[[], Sequence[Sequence[Arm]]]
) -> Iterator[tuple[Purpose, int, Sequence[Arm]]]:
    """Yield (purpose, turn, concurrent arms) of every missing probe and calibration launch.

    A probe runs a baseline alone, or concurrently with other worlds. ``slots`` is a function that
    returns the arms in groups that run concurrently. It is called again after the probes, because
    their results may change the groups.
    """
    for turn, arms in _probes(run, plan, slots()):
        yield Purpose.PROBE, turn, arms
    for turn, arms in _pilots(run, plan, slots()):
        yield Purpose.PILOT, turn, arms


def _pilots(
    run: Run, plan: Plan, slots: Sequence[Sequence[Arm]]
) -> Iterator[tuple[int, Sequence[Arm]]]:
    """Yield (turn, concurrent arms) of the missing calibration launches.

    Each arm gets one launch, and a second one if the length of its warm-up is uncertain. The first
    arm gets one more launch as an A/A comparison. If worlds run concurrently, the probes are the
    A/A comparison, and this launch is omitted. The additional launch comes last, so that every
    world has been launched before it if the time budget is short or a script is incorrect. A plan
    of checks needs neither. If several plans measure a case with the same window, they use the same
    calibration launches.
    """
    if plan.hash in run.windows:
        return
    single = all(len(slot) == 1 for slot in slots) and not plan.checks_only
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
    """Yield (turn, concurrent arms) of the missing probes.

    Probes are needed only if baselines run concurrently with other worlds. Each baseline first runs
    alone. Then copies of it run concurrently on all nodes and devices. These copies also show
    whether a node or device is slow.
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
    """Yield the probe that runs the single-device baseline on all devices, to find a slow device.

    A run makes this probe once. A plan whose contrasts form a curve needs no further probe. Its
    baseline runs concurrently with other worlds in the first block, and alone in later blocks.
    """
    baselines = {name for contrast in plan.contrasts for name in contrast.baseline}
    for arm in (arm for arm in plan.arms if arm.name in baselines and arm.case.world_size == 1):
        copies = packing.copies(arm.case, run.settings.nodes)
        if copies > 1 and not any(launch.purpose is Purpose.PROBE for launch in run.launches):
            yield 1, [arm] * copies
        return


def probe_again(run: Run, arms: Sequence[Arm]) -> tuple[int, Arm] | None:
    """Return (turn, baseline) of a further probe, or None after the last one.

    A further probe is made if only the effect of concurrent worlds is uncertain. It is cheaper than
    a block: a probe is one launch, whereas a block whose worlds run one by one has several
    launches.
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
    """Return how often an arm's case has been launched for this purpose.

    Launches of all plans that have the same calibration window are counted.
    """
    alike = {p.hash for p in run.plans if p.pilot == plan.pilot}
    return sum(
        launch.purpose is purpose and launch.case == arm.case.hash and launch.plan in alike
        for launch in run.launches
    )


def freeze(run: Run, plans: Sequence[Plan]) -> None:
    """Fix the windows of plans from their calibration launches, before the first timed launch."""
    so_far = run.bare(complete=False)
    usable_pilots = calibration.read(so_far, run.folder)
    run.launch_sd = calibration.launch_sd(usable_pilots)
    new = [plan for plan in plans if plan.hash not in run.windows]
    run.freeze({plan.hash: calibration.windows(plan, usable_pilots, run.described) for plan in new})


def missing_profiles(
    session: Session, plan: Plan, attempt: int = 0
) -> Iterator[tuple[int, list[Arm]]]:
    """Yield (turn, concurrent arms) of every missing profiled launch; attempt 1 confirms a FAIL.

    If a threshold applies to a part of the step, such as the waiting time, the arm that it judges
    is profiled in as many launches as a contrast has pairs. Other arms are profiled once. A case
    that an earlier plan has profiled is then not profiled again. A case is profiled once more if
    its profile has a different step time than its timed launches.
    """
    wanted = _wanted(session.run.bare(), plan, attempt)
    for turn in sorted({turn for _, turn in wanted}):
        arms = [arm for arm, its_turn in wanted if its_turn == turn]
        yield from ((turn, slot) for slot in together.groups(session, plan, arms))


def behind(session: Session, plan: Plan, block: Block, turn: int, arms: Sequence[Arm]) -> set[str]:
    """Return the names of the arms that are profiled after the timed window of this launch.

    Every plan gets a minimum number of blocks, and only the last launch of these blocks is followed
    by a profile. If a threshold judges a part of an arm's step, the arm is profiled in separate
    launches instead, because the losses of these launches are compared with the reference. A user's
    script is never profiled after a timed window.
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
    """Return the names of the contrasts that judge a part of an arm's step, by the arm's name."""
    contrasts = contrast_data.judged_of(plan, run.thresholds, run.machine)
    return {c.subject: c.name for c in contrasts if metrics.metric(c.metric).profiled}


def _wanted(run: RunRecord, plan: Plan, attempt: int) -> list[tuple[Arm, int]]:
    """Return (arm, turn) of every profiled launch that is missing."""
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
    """Return whether even the best profile of a case has an unusual step time.

    The best profile is the one whose step time is closest to the timed launches. Its step time is
    unusual if it is outside the range of their step times.
    """
    best = rungs.nearest(run, case)
    return best is not None and rungs.apart(best, rungs.steps_s(run, case))


@dataclass(frozen=True)
class Wanted:
    """A reference that is still to be trained.

    ``streamed`` is set if the model is too large for one device. ``replicates`` is the number of
    extra trainings that show how much rounding changes a loss.
    """

    arm: Arm
    steps: int
    streamed: bool
    replicates: int


def missing_references(
    session: Session, plan: Plan, arms: Sequence[Arm], *, replicated: bool = False
) -> Iterator[tuple[list[Arm], Wanted]]:
    """Yield (concurrent arms, reference) for every missing launch of references.

    One launch can train the references of several arms. It then yields the reference of the first
    arm, with the largest number of steps that any of its references needs. If ``replicated`` is
    set, the references get replicates, because the losses of a launch deviated more than a
    different order of summation explains.
    """
    wanted = _wanted_references(session.run, plan, arms, replicated)
    for streamed, replicates in itertools.product((False, True), (0, references.REPLICATES)):
        alike = {
            w.arm.name: w for w in wanted if w.streamed is streamed and w.replicates == replicates
        }
        worlds = [replace(w.arm, case=_world(session.run, w)) for w in alike.values()]
        # A streamed reference keeps the whole model in host memory, so only one of them runs at a
        # time.
        slots = [[arm] for arm in worlds] if streamed else together.groups(session, plan, worlds)
        for slot in slots:
            steps = max(alike[arm.name].steps for arm in slot)
            arms = [alike[arm.name].arm for arm in slot]
            yield arms, replace(alike[slot[0].name], steps=steps)


def _wanted_references(run: Run, plan: Plan, arms: Sequence[Arm], replicated: bool) -> list[Wanted]:
    """Return every missing reference. Cases of the same training have one common reference."""
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
            _note(
                run,
                arm,
                "the plain model does not fit in the host's memory: losses are not compared",
            )
            continue
        if streamed:
            what = f"the losses of the first {steps} steps are compared"
            _note(run, arm, f"the plain model does not fit on one device: {what}")
        known = by_key.get(wanted.key, Wanted(arm, 0, streamed, replicates))
        by_key[wanted.key] = replace(known, steps=max(steps, known.steps))
    return list(by_key.values())


def _world(run: Run, wanted: Wanted) -> CaseSpec:
    """Return the case that a reference trains.

    It needs at most as many devices as the case whose losses are compared with it.
    """
    case = wanted.arm.case
    return references.world(case, run.described[case.hash], wanted.streamed)


def _replicates(run: Run, key: str) -> int:
    """Return the number of replicates of a reference.

    It is 0 if the losses of the compared cases must match the reference bit for bit.
    """
    trained_so = (
        described.reference
        for described in run.described.values()
        if described.reference is not None
    )
    rounded = any(reference.limit for reference in trained_so if reference.key == key)
    return references.REPLICATES if rounded else 0


def _host_holds(run: Run, arm: Arm) -> bool:
    """Return whether the host's memory can hold the weights, gradients and optimizer state of a
    reference.

    Return False if the case uses a compressor, because a compressor would have to process all
    shards at the same time.
    """
    facts = run.described[arm.case.hash].facts
    assert facts is not None
    return arm.case.compressor is None and room(16 * facts.num_params, 1, Device.CPU, run.machine)


def _note(run: Run, arm: Arm, text: str) -> None:
    """Add a note about an arm's case to the run, unless the run already has it."""
    run.notes += [note for note in [f"{arm.case.id}: {text}"] if note not in run.notes]


def _known(run: Run, arm: Arm, replicates: int) -> int:
    """Return the number of steps of the existing reference. A failed reference is not retried.

    A reference without replicates counts as missing for a case that needs them, because its loss
    limit would otherwise be 2 %.
    """
    launch = references.launch_of(run.launches, run.described, arm.case.hash)
    if launch is None:
        return 0
    curve = references.curve(run.folder, run.launches, run.described, arm.case.hash)
    if curve is None:
        return 2**31
    return 0 if replicates and curve.replicates is None else len(curve.losses)


#: Predicted duration of a run in seconds. In a longer run, the first blocks of each plan are
#: measured before the next plan begins, so that the first verdicts are shown early.
LONG_S = 600.0


def ordered(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans in the order in which a run measures them.

    Plans of dense training come before plans of compressors, which are compared with dense
    training. Plans on simulated devices and plans that only check correctness come last, because
    their results say nothing about the speed of the hardware.
    """
    return sorted(plans, key=lambda plan: (_stands_in(plan), _encodes(plan)))


def _stands_in(plan: Plan) -> bool:
    """Return whether a plan uses simulated devices or has no timed launches."""
    return any(arm.case.stand_in for arm in plan.arms) or plan.checks_only


def _encodes(plan: Plan) -> bool:
    """Return whether an arm of a plan uses a compressor."""
    return any(arm.case.compressor for arm in plan.arms)


def first_verdict(verdicts: Sequence[Verdict], elapsed_s: float) -> str | None:
    """Return a sentence on the first plan's result at its largest world size.

    Return None if there is no result yet. The result is provisional, because more blocks or a fresh
    set may still change the status.
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
