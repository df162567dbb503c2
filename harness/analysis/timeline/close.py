"""Compute the budget of a step: match the communications of all ranks, and divide the step.

A budget divides the time of a step into terms, such as compute and waiting. It is closed if the
terms add up to the step.
"""

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import intervals
from harness.analysis.timeline.intervals import (
    Intervals,
    intersect,
    merge,
    per_window,
    subtract,
)
from harness.analysis.timeline.lanes import ALONE, Lanes, Op
from harness.analysis.timeline.reader import Trace, read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.analysis.timeline.tallies import operators
from harness.base.errors import ScaleproofError
from harness.cases import PROFILED, CaseSpec
from harness.record import Blame, Budget, Expected, RankBudget, RankRecord, Term

#: Share of the step by which two estimates of the waiting time may differ.
ALLOWED = 0.1
#: Waits are estimated by durations alone if clocks agree to this share of a step only.
WIDE = 0.1
#: Smallest number of collectives whose ends show the uncertainty of a clock.
FEW_ENDS = 4
#: Collectives that some ranks may leave before the last rank has entered.
_ONE_WAY = frozenset({"broadcast", "gather", "scatter", "reduce"})


@dataclass(frozen=True, kw_only=True)
class CollectiveMatch:
    """One communication as all of its ranks recorded it. ``ops`` maps a rank to its operation."""

    ops: Mapping[int, Op]

    @property
    def last(self) -> int:
        """Return the rank that entered last."""
        return max(self.ops, key=lambda r: (self.ops[r].start, r))

    @property
    def last_start(self) -> int:
        """Return when the last rank entered, in ns."""
        return max(operation.start for operation in self.ops.values())

    @property
    def shortest(self) -> int:
        """Return the shortest duration over the ranks, in ns.

        The rank with the shortest duration did not wait for others. This conclusion does not depend
        on the clocks.
        """
        return min(operation.end - operation.start for operation in self.ops.values())

    @property
    def p2p(self) -> bool:
        """Return whether this is a send with its recv."""
        return next(iter(self.ops.values())).p2p

    @property
    def symmetric(self) -> bool:
        """Return whether no rank can leave before the last one has entered."""
        return not self.p2p and next(iter(self.ops.values())).kind not in _ONE_WAY


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The matched communications of all ranks.

    ``refused`` is the reason if they could not be matched. ``lone`` is the number of collectives
    that are missing in the traces of some of their ranks.
    """

    meetings: tuple[CollectiveMatch, ...] = ()
    refused: str = ""
    lone: int = 0


def match(ranks: Sequence[Lanes]) -> Matched:
    """Match those operations of all ranks that belong to the same collective or message."""
    size = max(rank.world_size for rank in ranks)
    if not any(rank.ops for rank in ranks):
        return Matched()
    if size < 0 and len(ranks) == 1:
        return Matched(refused="only 1 trace was given")
    by_key: dict[tuple[object, ...], dict[int, list[Op]]] = {}
    for lane in ranks:
        for op in (op for op in lane.ops if op.group != ALONE):
            by_key.setdefault(_key(lane.rank, op), {}).setdefault(lane.rank, []).append(op)
    if size > len(ranks) and not _whole_groups(by_key):
        return Matched(refused=f"only {len(ranks)} of {size} traces were given")
    meetings = list[CollectiveMatch]()
    lone = 0
    for key, by_rank in by_key.items():
        first = next(iter(by_rank.values()))[0]
        if key[0] == "collective" and first.seq >= 0 and len(by_rank) < first.size:
            lone += 1  # some ranks began to record later or stopped earlier
            continue
        ordered = by_rank if first.seq >= 0 else _ordered_by_size(by_rank)
        if refused := _unmatched(key, ordered, len(ranks)):
            return Matched(refused=refused)
        together = zip(*ordered.values(), strict=True)
        meetings += [CollectiveMatch(ops=dict(zip(ordered, ops, strict=True))) for ops in together]
    return Matched(meetings=tuple(meetings), lone=lone)


def _ordered_by_size(by_rank: Mapping[int, Sequence[Op]]) -> dict[int, list[Op]]:
    """Order the operations of each rank by size, and those of equal size by their start.

    Collectives of a backend without sequence numbers can start in another order on each rank if
    several run concurrently. Their sizes are the same on all ranks.
    """
    return {rank: sorted(ops, key=lambda op: op.payload) for rank, ops in by_rank.items()}


def _unmatched(key: tuple[object, ...], by_rank: Mapping[int, Sequence[Op]], num_ranks: int) -> str:
    """Return why the operations with the same key do not match, or an empty string if they do."""
    collective = key[0] == "collective"
    kind = str(key[1])
    if not collective and len(by_rank) != 2:
        return f"a {kind} has no matching peer operation in these traces"
    counts = {r: len(ops) for r, ops in by_rank.items()}
    if len(set(counts.values())) > 1:
        return f"{kind}: its counts differ between ranks: {counts}"
    if collective and len(by_rank) != num_ranks and not key[2]:
        return f"{kind}: only ranks {sorted(by_rank)} issued it"
    for together in zip(*by_rank.values(), strict=True):
        sizes = {op.payload for op in together if op.payload >= 0}
        if collective and len(sizes) > 1:
            return f"{kind}: the ranks disagree on its size: {sorted(sizes)}"
    return ""


def _whole_groups(by_key: Mapping[tuple[object, ...], Mapping[int, Sequence[Op]]]) -> bool:
    """Return whether the ranks of each group are complete although the world is not."""
    return all(
        len(by_rank) == (2 if key[0] == "p2p" else next(iter(by_rank.values()))[0].size)
        for key, by_rank in by_key.items()
    )


def _key(rank: int, op: Op) -> tuple[object, ...]:
    """Return a key that is equal for operations of different ranks if they belong together."""
    if op.p2p and op.peer >= 0:
        ends = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
        return ("p2p", "send", op.group, *ends)
    return ("collective", op.kind, op.group, op.seq)


def clock_bounds(matched: Matched, reference: int, rank: int) -> tuple[int, int] | None:
    """Return bounds of the offset (ns) to add to a rank's times, or None if they are unknown.

    No rank leaves a synchronising collective before the last one has entered it. For rank j and the
    reference i, the offset theta is therefore in [max(start_i - end_j), min(end_i - start_j)].
    """
    low, high = None, None
    for meeting in matched.meetings:
        if not meeting.symmetric or reference not in meeting.ops or rank not in meeting.ops:
            continue
        i, j = meeting.ops[reference], meeting.ops[rank]
        low = i.start - j.end if low is None else max(low, i.start - j.end)
        high = i.end - j.start if high is None else min(high, i.end - j.start)
    return None if low is None or high is None else (low, high)


@dataclass(frozen=True, kw_only=True)
class ReconciledBudget:
    """A budget with the data from which it was computed.

    ``tracks`` maps each rank to the times that belong to each term. ``offsets_ns`` maps each rank
    to the offset that was added to its times.
    """

    budget: Budget
    tracks: Mapping[int, Mapping[Term, Intervals]]
    offsets_ns: Mapping[int, int]


def close(
    ranks: Sequence[Lanes], offsets_ns: Mapping[int, int] | None = None, clock_ns: int | None = None
) -> ReconciledBudget:
    """Compute the budget of a sequence of profiled steps of all ranks.

    ``offsets_ns`` is added to each rank's times to convert them to a common clock. ``clock_ns`` is
    the uncertainty of these offsets. If no offsets are given, they are estimated from the bounds
    that follow from the collectives.
    """
    unsure = [f"rank {lanes.rank}: {u}" for lanes in ranks for u in lanes.unsure]
    matched = match(ranks)
    if offsets_ns is None:
        offsets_ns, clock_ns = _offsets(ranks, matched, unsure)
    common = [lanes.shifted(offsets_ns.get(lanes.rank, 0)) for lanes in ranks]
    if any(offsets_ns.values()):
        matched = match(common)
    unsure += _missing(matched, common)
    steps = min(len(lanes.edges) for lanes in common)
    by_rank: dict[int, list[_Seen]] = {lanes.rank: [] for lanes in common}
    for meeting in matched.meetings:
        for rank, op in meeting.ops.items():
            shortest = meeting.shortest if meeting.symmetric else op.end - op.start
            by_rank[rank].append(_Seen(op, meeting.last_start, shortest))
    divided = not matched.refused
    tracks = {lanes.rank: _tracks(lanes, steps, by_rank[lanes.rank], divided) for lanes in common}
    closed = tuple(
        _rank(lanes, steps, by_rank[lanes.rank], tracks[lanes.rank], divided) for lanes in common
    )
    wait_ns = None
    if clock_ns is not None and not matched.refused:
        if clock_ns > WIDE * np.mean([closed[0].step_ns]):
            closed = tuple(map(_by_durations, closed))
            unsure.append(
                f"clocks agree within {clock_ns / 1e6:.2f} ms only, so waits are the durations of"
                " collectives beyond the shortest duration on any rank"
            )
        else:
            unsure += _disagreements(closed, clock_ns)
        often = sum(meeting.symmetric for meeting in matched.meetings) / max(1, steps - 1)
        wait_ns = _wait_range(closed, clock_ns * often)
    return ReconciledBudget(
        budget=Budget(
            device=common[0].device,
            ranks=closed,
            clock_ns=clock_ns,
            blame=_blame(common, closed, matched, steps),
            unsure=tuple(unsure),
            capture=common[0].capture,
            wait_ns=wait_ns,
        ),
        tracks=tracks,
        offsets_ns=offsets_ns,
    )


def _missing(matched: Matched, ranks: Sequence[Lanes]) -> Iterator[str]:
    """Yield a sentence for each kind of data that the traces of some ranks lack."""
    if matched.refused:
        yield f"communication is not divided into wait and transfer: {matched.refused}"
    if matched.lone:
        yield (
            f"{matched.lone} collectives are missing in the traces of some ranks, so"
            " their time is not divided into wait and transfer"
        )
    if len({len(lanes.edges) for lanes in ranks}) > 1:
        yield "the ranks recorded different numbers of steps: only steps that all recorded are used"


class _Seen(NamedTuple):
    """An operation of one rank, with data about it from the traces of the other ranks.

    ``last_start`` is the time at which the last rank entered, in ns. ``shortest`` is the time that
    the operation takes without waiting, in ns. If ranks need not wait for each other in this
    operation, it is the duration on this rank.
    """

    op: Op
    last_start: int
    shortest: int


def _tracks(
    lane: Lanes, num_edges: int, operations: Sequence[_Seen], divided: bool
) -> dict[Term, Intervals]:
    """Return the times that belong to each term.

    Times that could belong to several terms belong to the first of them.
    """
    remaining = np.array([[lane.edges[0], lane.edges[num_edges - 1]]], dtype=np.int64)
    exposed = subtract(lane.awaited, merge(lane.compute, lane.move))
    late = intervals.of(
        (operation.start, min(operation.end, last))
        for operation, last, _ in operations
        if not operation.p2p
    )
    alone = intervals.of(
        (operation.start, min(operation.end, last))
        for operation, last, _ in operations
        if operation.p2p
    )
    claims = {Term.COMPUTE: lane.compute, Term.MOVE: lane.move}
    if divided:
        claims |= {
            Term.WAIT: intersect(exposed, late),
            Term.BUBBLE: intersect(exposed, alone),
            Term.TRANSFER: exposed,
        }
    else:
        claims[Term.UNDIVIDED] = exposed
    claims |= {Term.DATA: lane.data, Term.LAUNCH: lane.launch, Term.OTHER: lane.queued}
    taken = {}
    for term, claim in claims.items():
        taken[term] = intersect(remaining, claim)
        remaining = subtract(remaining, taken[term])
    return {**taken, Term.IDLE: remaining}


def _rank(
    lane: Lanes,
    num_edges: int,
    operations: Sequence[_Seen],
    tracks: Mapping[Term, Intervals],
    divided: bool,
) -> RankBudget:
    """Return the terms of one rank for every step, and check that they add up to the step."""
    edges = lane.edges[:num_edges]
    terms = {str(term): tuple(per_window(track, edges).tolist()) for term, track in tracks.items()}
    step_ns = tuple(np.diff(edges).tolist())
    for step, whole in enumerate(step_ns):
        if (
            sum(term[step] for term in terms.values()) != whole
        ):  # not an assert statement, because the check must also run under -O
            raise AssertionError(
                f"rank {lane.rank} step {step} is not closed: its terms do not sum to the step"
            )
    free = None
    if divided and operations:
        busy = merge(lane.compute, lane.move)
        exposed = per_window(subtract(lane.awaited, busy), edges)
        short = intervals.of(
            (max(operation.end - least, operation.waited), operation.end)
            for operation, _, least in operations
        )
        free = tuple((exposed - per_window(subtract(short, busy), edges)).tolist())
    return RankBudget(
        rank=lane.rank,
        step_ns=step_ns,
        terms=terms,
        comm_ns=tuple(per_window(lane.communication, edges).tolist()),
        wait_free_ns=free,
    )


def _offsets(
    ranks: Sequence[Lanes], matched: Matched, unsure: list[str]
) -> tuple[dict[int, int], int | None]:
    """Return the offset of each clock that is wrong, and the largest uncertainty of a clock, in ns.

    Bounds of the offsets follow from the collectives. If the bounds of a rank include 0, its clock
    is not corrected. The midpoint of bounds would be biased if one rank is always late. A corrected
    offset is therefore the median difference of the ends of collectives, which ranks leave almost
    at the same time, and its uncertainty is half the interquartile range of these differences. A
    sentence on each correction is appended to ``unsure``.
    """
    offsets: dict[int, int] = {}
    widest: int | None = None
    for lane in ranks[1:]:
        bounds = clock_bounds(matched, ranks[0].rank, lane.rank)
        if bounds is None:
            continue
        low, high = bounds
        ends = _end_differences(matched, ranks[0].rank, lane.rank)
        first, middle, third = np.quantile(ends, [0.25, 0.5, 0.75]).astype(int).tolist()
        half = (third - first) // 2 if len(ends) >= FEW_ENDS else (high - low) // 2
        if not low <= 0 <= high:
            offsets[lane.rank] = min(max(middle, low), high)
            unsure.append(
                f"rank {lane.rank}: its clock is off by {offsets[lane.rank] / 1e6:+.3f} ms,"
                f" corrected to within {half / 1e6:.3f} ms"
            )
        widest = max(widest or 0, half)
    return offsets, widest


def _end_differences(matched: Matched, reference: int, rank: int) -> list[int]:
    """Return the end of each synchronising collective on the reference minus on a rank, in ns."""
    return [
        meeting.ops[reference].end - meeting.ops[rank].end
        for meeting in matched.meetings
        if meeting.symmetric and {reference, rank} <= meeting.ops.keys()
    ]


def _disagreements(ranks: Sequence[RankBudget], clock_ns: int) -> list[str]:
    """Return a sentence on each rank for which two estimates of the waiting time differ.

    One estimate uses the clocks, and the other only the durations of operations. The allowed
    difference is the uncertainty of the clocks plus ``ALLOWED`` of the step.
    """
    sentences = []
    for rank in ranks:
        if rank.wait_free_ns is None:
            continue
        by_clock = rank.mean_ns(Term.WAIT)
        free = sum(rank.wait_free_ns) / len(rank.step_ns)
        step_ns = sum(rank.step_ns) / len(rank.step_ns)
        if abs(by_clock - free) > clock_ns + ALLOWED * step_ns:
            sentences.append(
                f"rank {rank.rank}: waits {by_clock / 1e6:.2f} ms per step according to the clocks,"
                f" but {free / 1e6:.2f} ms by durations alone"
            )
    return sentences


def _by_durations(rank: RankBudget) -> RankBudget:
    """Return a budget whose wait is the estimate that does not compare clocks."""
    if rank.wait_free_ns is None:
        return rank
    waits, transfers = (rank.terms[term] for term in (Term.WAIT, Term.TRANSFER))
    both = [wait + transfer for wait, transfer in zip(waits, transfers, strict=True)]
    free = [min(x, most) for x, most in zip(rank.wait_free_ns, both, strict=True)]
    rest = [most - x for x, most in zip(free, both, strict=True)]
    return replace(rank, terms={**rank.terms, Term.WAIT: tuple(free), Term.TRANSFER: tuple(rest)})


def _wait_range(ranks: Sequence[RankBudget], slack_ns: float) -> tuple[float, float] | None:
    """Return the interval of the wait in a step, in ns; None if durations give no estimate.

    ``slack_ns`` is the largest error of all waits in a step that the clocks can cause.
    """
    if any(rank.wait_free_ns is None for rank in ranks):
        return None
    by_clock = float(np.mean([rank.mean_ns(Term.WAIT) for rank in ranks]))
    exposed = float(np.mean([rank.mean_ns(Term.WAIT, Term.TRANSFER) for rank in ranks]))
    free = float(np.mean([rank.wait_free_ns for rank in ranks]))
    low = min(by_clock - slack_ns, free)
    return max(0.0, low), min(exposed, max(by_clock + slack_ns, free))


def _waiting(
    matched: Matched, edges: Mapping[int, NDArray[np.int64]]
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the intervals (ns) in which a rank waited for another one, by (late rank, rank).

    ``edges`` are the times at which the steps of each rank begin and end, in ns.
    """
    waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
    opening = min(matched.meetings, key=lambda meeting: meeting.last_start, default=None)
    for meeting in matched.meetings:
        late = meeting.last
        for rank, op in meeting.ops.items():
            first = int(edges[rank][0])
            if meeting is opening:
                # Ranks may begin to record at different times, which is no waiting.
                first = max(first, op.start + max(0, int(edges[late][0]) - first))
            start = max(op.start, op.waited, first)
            end = min(op.end, meeting.last_start, int(edges[rank][-1]))
            if rank != late and end > start:
                waiting.setdefault((late, rank), []).append((start, end))
    return waiting


def _blame(
    lanes: Sequence[Lanes], closed: Sequence[RankBudget], matched: Matched, num_edges: int
) -> Blame | None:
    """Return the rank for which other ranks waited longest, or None if no rank waited.

    Only waiting without concurrent compute counts. For the returned rank, the result also names the
    term that exceeds the median of the other ranks most.
    """
    if len(closed) < 2:
        return None
    busy = {lane.rank: merge(lane.compute, lane.move) for lane in lanes}
    edges = {lane.rank: lane.edges[:num_edges] for lane in lanes}
    steps = len(closed[0].step_ns)
    gross = np.zeros(steps, dtype=np.int64)
    net = {budget.rank: np.zeros(steps, dtype=np.int64) for budget in closed}
    for (late, rank), pairs in _waiting(matched, edges).items():
        exposed = per_window(subtract(intervals.of(pairs), busy[rank]), edges[rank])
        gross += exposed
        net[late] += exposed
        net[rank] -= exposed
    # If a rank is late because it waited itself earlier in the step, that waiting is subtracted.
    waited = {rank: int(np.maximum(of_steps, 0).sum()) for rank, of_steps in net.items()}
    guilt = sum(waited.values())
    if not guilt:
        return None
    rank = max(waited, key=lambda r: (waited[r], r))
    blamed = next(budget for budget in closed if budget.rank == rank)
    excess = {}
    for term in (Term.COMPUTE, Term.MOVE, Term.DATA, Term.LAUNCH, Term.IDLE):
        usual = float(np.median([budget.mean_ns(term) for budget in closed if budget.rank != rank]))
        excess[term] = blamed.mean_ns(term) - usual
    term = max(excess, key=lambda t: excess[t])
    return Blame(
        rank=rank,
        waited_ns=waited[rank] // steps,
        share=waited[rank] / guilt,
        term=term if excess[term] > 0 else None,
        excess_ns=int(max(excess[term], 0)),
        gross_ns=int(gross.sum()) // steps,
        net_ns=int(net[rank].sum()) // steps,
    )


#: This many traces or more are read in parallel processes. For fewer traces, the processes take
#: longer to start than they save.
MANY = 4


def trace_path(folder: Path, launch: str, rank: int) -> Path:
    """Return the path of a rank's trace in the folder of a run."""
    return folder / "launches" / launch / f"rank{rank}.trace.json.gz"


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Read the traces of all ranks, in parallel on all cores if there are many.

    The next launch starts only after the traces have been read, because the reading would take
    cores from a concurrent launch.
    """
    workers = min(len(paths), len(os.sched_getaffinity(0)))
    if len(paths) < MANY or workers < 2:
        return [read(path) for path in paths]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(read, paths))


def close_launch(
    folder: Path, launch: str, ranks: Sequence[RankRecord]
) -> tuple[list[Trace], list[Lanes], ReconciledBudget]:
    """Read the traces of all ranks, and compute the budget on the clock of rank 0."""
    traces = read_all([trace_path(folder, launch, rank.rank) for rank in ranks])
    rank_lanes = [sorted_lanes(trace, rank.rank) for trace, rank in zip(traces, ranks, strict=True)]
    offsets = {rank.rank: -rank.clock_offset_ns for rank in ranks}
    halves = [rank.clock_half_ns for rank in ranks if rank.clock_half_ns is not None]
    return traces, rank_lanes, close(rank_lanes, offsets, max(halves, default=0))


def budget_of(
    folder: Path, launch: str, ranks: Sequence[RankRecord], steps: int, talks: bool
) -> Budget:
    """Return the budget of a launch with the operators that took longest.

    ``steps`` is the number of profiled steps. ``talks`` states that every rank is expected to
    communicate. Raise ScaleproofError if these steps, the activity of the device or the
    communication are missing in the traces. Terms that were not recorded would otherwise be 0, and
    would pass every threshold.
    """
    traces, rank_lanes, closed = close_launch(folder, launch, ranks)
    budget = closed.budget
    if budget.device == "cpu" and any(rank.device != "cpu" for rank in ranks):
        raise ScaleproofError(
            "the traces have no device activity: CUPTI is missing, or another tool uses it",
            where=launch,
            expected="traces that contain kernels",
            fix="end nsys and DCGM profiling, or use --no-timeline",
        )
    for trace, rank in zip(traces, budget.ranks, strict=True):
        num_steps = len(rank.step_ns) + (
            budget.device == "cuda"
        )  # the first step on a device has no budget, because its begin is unknown
        problem = trace.partial
        if num_steps != steps:
            problem = problem or f"it has {num_steps} steps, expected {steps}"
        if talks and not sum(rank.comm_ns):
            problem = problem or "it has no communication"
        if problem:
            raise ScaleproofError(f"the trace of rank {rank.rank}: {problem}", where=trace.path)
    return replace(budget, operators=operators(traces, rank_lanes, budget.steps))


def talks(case: CaseSpec, expected: Expected | None) -> bool:
    """Return whether every rank of a case communicates in its profiled steps.

    Return False for the user's script, because it may not communicate.
    """
    if expected is None:
        return False
    often = expected.period <= PROFILED
    return case.world_size > 1 and case.communicate and often and bool(expected.payload_bytes)
