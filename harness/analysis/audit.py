"""The audit checks that a record contains exactly one complete and unmodified run.

``verify`` recomputes everything that follows from samples. The audit checks the rest: no launch was
removed, added, moved or copied, and thresholds were fixed before the first launch.
"""

import datetime
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.analysis import packing
from harness.base.documents import Json, says
from harness.cases import StandIn, heads
from harness.record import LaunchRecord, LaunchStatus, Purpose, RunRecord, chain
from harness.record.chain import Kind, Link
from harness.record.launch import BEHIND, FLAKES, STALLS, num_again

#: Seconds by which the clock of a machine may be corrected between two readings.
CLOCK_S = 0.05
#: Seconds by which the wall clock of a machine may be set during a launch.
DAY_S = 86400.0
#: If at least this many launches of a case have the mean steps of another run, they are a copy.
FEWEST_ALIKE = 4
#: Largest difference of the logarithms of two mean steps that count as equal.
ALIKE = 1e-4


def audit(run: RunRecord, folder: Path, links: Sequence[Link]) -> list[str]:
    """Return a sentence for everything in a record that cannot occur in an unmodified record."""
    return [
        *_launches(run, folder, cut_off(links)),
        *_copies(run.launches),
        *_times(run),
        *(_lasted(run, links) if run.complete else ()),
        *_turns(run),
        *_stalled(run),
        *_flaked(run),
        *_seats(run),
        *(_chained(run, links) if links or run.head else ()),
    ]


def cut_off(links: Sequence[Link]) -> frozenset[str]:
    """Return the names of launches that have no entry in the record although they were started.

    They are sweeps that failed, and launches that ran when the program was killed. The process that
    resumes a run enters the names of killed launches into the chain.
    """
    sittings = chain.bodies(links, Kind.SITTING)
    broken = (str(body["launch"]) for body in chain.bodies(links, Kind.BROKEN))
    return frozenset(name for body in sittings for name in body.get("cut", ())).union(broken)


def strays(run: RunRecord) -> list[str]:
    """Return a sentence for each launch whose plan, arm or case is not in the record.

    Nothing can be recomputed from such a launch.
    """
    arms = {plan.hash: {arm.name: arm.case.hash for arm in plan.arms} for plan in run.plans}
    return [
        f"{launch.launch} belongs to a plan, an arm or a case that this record does not contain"
        for launch in run.launches
        if arms.get(launch.plan, {}).get(launch.arm) != launch.case
        or launch.case not in run.described
    ]


def _launches(run: RunRecord, folder: Path, cut: frozenset[str]) -> Iterator[str]:
    """Yield missing launch numbers, and folders of launches that the record does not contain.

    For each failed launch, one further launch is allowed, because a failed launch may have been
    repeated for diagnosis. The launches in ``cut`` are allowed, too (``cut_off``).
    """
    looks = sum(launch.status is LaunchStatus.FAILED for launch in run.launches)
    launches_folder = folder / "launches"
    present = (
        {path.name for path in launches_folder.iterdir() if path.is_dir()}
        if launches_folder.is_dir()
        else set()
    )
    recorded = {launch.launch for launch in run.launches}
    extra = sorted(
        n for n in present - recorded - cut if not n.startswith(("fabric-", "recovery-"))
    )
    if run.complete and len(extra) > looks:
        yield f"launches/{extra[0]} is not in the record"
    numbers = {int(name.rpartition("-")[2]) for name in recorded | cut}
    numbers |= {row.launch for row in run.fabric}
    gaps = sorted(set(range(1, max(numbers, default=0) + 1)) - numbers)
    if run.complete and not (run.recoveries or run.played) and len(gaps) > looks:
        yield f"launch {gaps[0]} is missing ({len(gaps)} of {max(numbers)} launches are missing)"


def _copies(launches: Sequence[LaunchRecord]) -> Iterator[str]:
    """Yield the first rank whose samples are equal to the samples of another rank.

    Samples contain the times of every step, so two ranks never have equal samples. The samples of
    references and of comparisons of bits contain no times and may be equal.
    """
    timed = [x for x in launches if x.purpose not in (Purpose.REFERENCE, Purpose.BITS)]
    count = Counter(r.samples_sha256 for x in timed for r in x.ranks if r.samples_sha256)
    for launch in timed:
        for rank in launch.ranks:
            if count[rank.samples_sha256] > 1:
                yield f"{launch.launch}: rank {rank.rank} has the samples of another rank"
                return


def twice(run: RunRecord, other: RunRecord) -> str:
    """Return a sentence if the same samples occur in two runs, or an empty string.

    Two measurements never result in the same samples.
    """
    known = {rank.samples_sha256: x.launch for x in other.launches for rank in x.ranks}
    for launch in (x for x in run.launches if x.asked is Purpose.TIMED):
        for rank in launch.ranks:
            if rank.samples_sha256 and rank.samples_sha256 in known:
                before = known[rank.samples_sha256]
                return f"{launch.launch} has the samples of {before} in {other.run}"
    return _stepped_alike(run, other)


def _stepped_alike(run: RunRecord, other: RunRecord) -> str:
    """Return a sentence if the launches of a case have the same mean steps as another run.

    Such launches were copied, and their times were changed slightly. In two measurements, the
    mean steps differ more: they vary by some 1 % from launch to launch even on the quietest
    machine. Launches of simulated compute are not compared, because their schedule makes the mean
    steps equal.
    """
    of_other = _mean_steps(other)
    for case, mine in _mean_steps(run).items():
        theirs = of_other.get(case, [])
        pairs = list(zip(mine, theirs, strict=False))
        if len(pairs) >= FEWEST_ALIKE and all(abs(math.log(a / b)) < ALIKE for a, b in pairs):
            return f"{len(pairs)} launches of a case have the steps of {other.run}, one by one"
    return ""


def _mean_steps(run: RunRecord) -> dict[str, list[float]]:
    """Return the mean steps of the timed launches of each case in s, by the hash of the case."""
    paced = {
        arm.case.hash
        for plan in run.plans
        for arm in plan.arms
        if StandIn.PACED in arm.case.stand_in
    }
    means: dict[str, list[float]] = {}
    for launch in run.launches:
        if launch.purpose is Purpose.TIMED and launch.steps and launch.case not in paced:
            means.setdefault(launch.case, []).append(launch.steps.mean_s)
    return means


def _times(run: RunRecord) -> Iterator[str]:
    """Yield launches that overlap, that are shorter than their steps, or that ran on other hosts.

    The order of references is not checked. A reference with replicates is recorded before the
    launch that needed the replicates, although that launch ran first.
    """
    began = datetime.datetime.fromisoformat(run.started_at)
    previous_end = began - datetime.timedelta(seconds=1)
    slot = ""
    entered = [x.started_at for x in run.launches if x.purpose is not Purpose.REFERENCE]
    if entered != sorted(entered):
        yield "launches are not in the order in which they began"
    for launch in sorted(run.launches, key=lambda launch: launch.started_at):
        at = datetime.datetime.fromisoformat(launch.started_at)
        its_slot = launch.slot.removesuffix(BEHIND)
        beside = bool(its_slot) and its_slot == slot
        if not beside and at < previous_end - datetime.timedelta(seconds=CLOCK_S):
            yield f"{launch.launch} began before the previous launch had ended"
            return
        ended = at + datetime.timedelta(seconds=launch.wall_s)
        slot = its_slot
        previous_end = max(previous_end, ended) if beside else ended
        stepping = max((rank.stepping_s for rank in launch.ranks), default=0.0)
        if launch.status is LaunchStatus.OK and launch.wall_s + CLOCK_S < stepping:
            yield (
                f"{launch.launch}: its steps take {stepping:.3f} s, but the launch took"
                f" {launch.wall_s:.3f} s"
            )
            return
        begin_s = at.timestamp()
        alone = () if run.nodes else launch.ranks  # the clocks of other nodes may be wrong
        for window_ns in (rank.window_ns for rank in alone if rank.window_ns):
            if not begin_s - DAY_S < window_ns[0] / 1e9 <= window_ns[1] / 1e9 < begin_s + DAY_S:
                yield f"{launch.launch} began on another day than its steps"
                return
    hosts = {machine.host for machine in (run.machine, *run.nodes)}
    if strange := {rank.host for launch in run.launches for rank in launch.ranks} - hosts:
        yield f"ranks ran on {', '.join(sorted(strange))}, which is not a machine of this run"


def _lasted(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence if a run that was not interrupted is shorter than its launches together.

    Of launches that ran at the same time, the longest counts.
    """
    if any(link.kind is Kind.SITTING for link in links):
        return
    by_slot: dict[str, float] = {}
    for launch in run.launches:
        slot = launch.slot.removesuffix(BEHIND) or launch.launch
        by_slot[slot] = max(by_slot.get(slot, 0.0), launch.wall_s)
    total_s = sum(by_slot.values())
    if total_s > 1.05 * run.elapsed_s + CLOCK_S:
        yield f"the launches take {total_s:.0f} s, but the run took {run.elapsed_s:.0f} s"


def _turns(run: RunRecord) -> Iterator[str]:
    """Yield blocks that lack launches, or whose order is not the order that their seed draws.

    A block launches its arms in this order, and then in the reverse order.
    """
    for block in run.blocks:
        plan = run.plan_of.get(block.plan)
        where = f"block {block.number}" if plan is None else f"{plan.name}: block {block.number}"
        if plan is None or block != block.drawn(plan.protocol.seed):
            yield f"{where}: the order of its arms is not the one that its seed draws"
            continue
        of_block = [
            launch
            for launch in run.by_plan.get(block.plan, ())
            if launch.purpose is Purpose.TIMED
            and (launch.attempt, launch.block) == (block.attempt, block.number)
        ]
        wanted = [(turn, arm) for turn, slot in block.passes for arm in slot]
        happened = [(launch.turn, launch.arm) for launch in of_block]
        ended = not run.complete or any(not launch.usable for launch in of_block)
        if happened != wanted[: len(happened)] or (len(happened) < len(wanted) and not ended):
            yield (
                f"{where} has {len(happened)} of {len(wanted)} launches, or its launches are not in"
                " the drawn order"
            )
    if run.blocks:
        known = {(b.plan, b.attempt, b.number) for b in run.blocks}
        for launch in run.launches:
            place = (launch.plan, launch.attempt, launch.block)
            if launch.purpose is Purpose.TIMED and place not in known:
                yield f"{launch.launch} belongs to no block"
                return


def _stalled(run: RunRecord) -> Iterator[str]:
    """Yield launches that were repeated as stalled although the host had not stopped.

    Only launches with a schedule (simulated compute) may be repeated for this reason, and at most
    ``STALLS`` times in a plan.
    """
    slots: dict[str, list[LaunchRecord]] = {}
    for launch in (launch for launch in run.launches if launch.purpose is Purpose.STALLED):
        slots.setdefault(launch.slot or launch.launch, []).append(launch)
    for launches in slots.values():
        still = [launch for launch in launches if launch.stood_still]
        scheduled = all(rank.planted_s is not None for launch in still for rank in launch.ranks)
        if not (
            still and scheduled and all(launch.usable or launch in still for launch in launches)
        ):
            yield f"{launches[0].launch} was timed again, but the host had not stood still"
            return
    for plan, of_plan in sorted(run.by_plan.items()):
        times = num_again(of_plan, Purpose.STALLED)
        if times > STALLS:
            yield f"launches of plan {plan} were timed again {times} times; the limit is {STALLS}"
            return


def _flaked(run: RunRecord) -> Iterator[str]:
    """Yield relaunches without a transient failure before them, and plans with too many relaunches.

    At most ``FLAKES`` relaunches are allowed in a plan. Relaunches after a lost node do not count,
    because the loss of a node does not depend on the plan.
    """
    for plan, of_plan in sorted(run.by_plan.items()):
        slots: dict[str, list[LaunchRecord]] = {}
        for launch in (launch for launch in of_plan if launch.purpose is Purpose.FLAKED):
            slots.setdefault(launch.slot or launch.launch, []).append(launch)
        for launches in slots.values():
            if not any(launch.passing for launch in launches):
                yield f"{launches[0].launch} was launched once more, but had no transient failure"
        times = sum(not any(launch.lost for launch in launches) for launches in slots.values())
        if times > FLAKES:
            yield f"launches of plan {plan} were repeated {times} times; the limit is {FLAKES}"


def _seats(run: RunRecord) -> Iterator[str]:
    """Yield the first launch that did not run on the nodes and devices that its seed draws."""
    plans = {p.hash: p for p in run.plans}
    slots: dict[str, list[LaunchRecord]] = {}
    apart = (Purpose.REFERENCE, Purpose.ROUND)
    for launch in (launch for launch in run.launches if launch.hosts and launch.asked not in apart):
        slots.setdefault(launch.slot or launch.launch, []).append(launch)
    for launches in slots.values():
        first = launches[0]
        plan = plans[first.plan]
        names = tuple(launch.arm for launch in launches)
        draw = packing.lot(plan.protocol.seed, first.asked, first.attempt, first.turn, names)
        worlds = [plan.arm(name).case for name in names]
        seats = packing.seats(worlds, run.settings.nodes, draw) or []
        drawn = [(seat.hosts, seat.devices if first.slot else ()) for seat in seats]
        if drawn != [(launch.hosts, launch.devices) for launch in launches]:
            yield f"{first.launch} did not run on the nodes or devices that its seed draws"
            return


def _chained(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield the differences between the record and its hash chain."""
    if not links:
        yield f"{chain.FILE} is missing, although the record names the end of a chain"
        return
    yield from _ends(run, links)
    if links[0].kind is not Kind.SEALED:
        yield "the chain does not begin with the entry that was sealed before the first launch"
        return
    yield from _sealed(run, links)
    yield from _announced(run, links)
    yield from _entered(run, links)
    yield from _stated(run, links)


def _stated(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield fields of a complete record that differ from the chain's last entry."""
    if not run.complete or links[-1].kind is not Kind.ENDED:
        return
    for name in chain.STATED:
        ended = links[-1].body
        if name in ended and not says(ended[name], getattr(run, name)):
            yield f"{name} differs from the entry at the end of the run"


def _ends(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield a sentence if the end of the chain does not match the end of the record."""
    if run.head not in {link.hash for link in links}:
        yield "the chain does not contain the link that the record ends with"
    elif run.complete and run.head != links[-1].hash:
        yield f"the chain continues after the link that the record ends with, {run.head[:12]}"
    ends = [link.number for link in links if link.kind is Kind.ENDED]
    if ends and ends[0] != links[-1].number:
        yield f"the chain continues after its end, link {ends[0]}"
    if run.complete is not (links[-1].kind is Kind.ENDED):
        yield (
            "the record is complete, but the chain does not end"
            if run.complete
            else "the chain has ended, but the record is not complete"
        )


def _sealed(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield fields of the record that differ from the chain's entry before the first launch."""
    sealed = links[0].body
    names = ["schema", "run", "started_at", "settings", "machine", "software"]
    names += ["environment", "thresholds"]
    for name in [*names, *(["facts"] if "facts" in sealed else [])]:
        if not says(sealed.get(name), getattr(run, name)):
            yield f"{name} differs from what was sealed before the first launch"
    # Each process that resumes a run examines its host, and the end of the chain has all findings.
    resumed = any(link.kind is Kind.SITTING for link in links)
    if not resumed and not says(sealed.get("admission"), run.admission):
        yield "admission differs from the findings before the first launch"


def _announced(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield plans and descriptions of cases that differ from their entries in the chain."""
    plans = {plan.hash: plan for plan in run.plans}
    for body in chain.bodies(links, Kind.PLAN):
        if not says(body["plan"], plans.get(body["hash"])):
            yield f"plan {body['plan']['name']} differs from its entry in the chain"
    for body in chain.bodies(links, Kind.DESCRIBED):
        for case, answer in body.items():
            if case not in run.described or not says(answer, run.described[case]):
                yield f"the description of case {case} differs from its entry in the chain"
    announced = {case for body in chain.bodies(links, Kind.DESCRIBED) for case in body}
    if unannounced := sorted(set(run.described) - announced):
        yield f"the description of case {unannounced[0]} has no entry in the chain"


def _entered(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield measurements of the record that differ from their entries in the chain."""
    yield from _entered_late(run, links)
    for kind, entries in (
        (Kind.LAUNCH, run.launches),
        (Kind.BLOCK, run.blocks),
        (Kind.TRIAL, run.recoveries),
        (Kind.PLAYED, run.played),
    ):
        yield from _alike(kind, entries, chain.bodies(links, kind), whole=run.complete)
    rows = [row for body in chain.bodies(links, Kind.SWEEP) for row in body]
    yield from _alike(Kind.SWEEP, run.fabric, rows, whole=run.complete)
    pairs = [] if run.suspects is None else [run.suspects]
    yield from _alike(Kind.PAIRED, pairs, chain.bodies(links, Kind.PAIRED), whole=run.complete)
    for module in heads.modules("AUDIT"):
        yield from module.differences(run)


#: Longest plausible time in s between the end of a launch and its entry in the chain. The entry is
#: made at once, unless the program or its machine is suspended.
LATEST_S = 86_400.0


def _entered_late(run: RunRecord, links: Sequence[Link]) -> Iterator[str]:
    """Yield the first launch whose entry was made before the launch ended, or long after that."""
    entries = [link for link in links if link.kind is Kind.LAUNCH]
    for launch, link in zip(run.launches, entries, strict=False):
        began = datetime.datetime.fromisoformat(launch.started_at)
        entered = datetime.datetime.fromisoformat(link.at)
        after_s = (entered - began).total_seconds() - launch.wall_s
        if not -CLOCK_S <= after_s <= LATEST_S:
            yield (
                f"{launch.launch} was entered into the chain at {link.at}, but it began at"
                f" {launch.started_at} and took {launch.wall_s:.3g} s"
            )
            return


def _alike(
    kind: Kind, record: Sequence[object], links: list[Json], *, whole: bool
) -> Iterator[str]:
    """Yield a sentence if entries of one kind differ between the record and the chain.

    The record of an interrupted run may lack the last entries.
    """
    for i, (a, b) in enumerate(zip(record, links, strict=False)):
        if not says(b, a):
            yield f"{kind} {i + 1} of the record differs from the one in the chain"
            return
    if len(record) > len(links) or (whole and len(record) < len(links)):
        yield f"the record has {len(record)} {kind} entries, and the chain {len(links)}"
