"""Closes the budget: lanes of all ranks to terms that sum to each step, exactly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.analysis.timeline import intervals
from harness.analysis.timeline.intervals import (
    Intervals,
    intersect,
    merge,
    per_window,
    subtract,
)
from harness.analysis.timeline.lanes import Lanes, Op
from harness.analysis.timeline.match import Matched, clock_bounds, match
from harness.record import Blame, Budget, RankBudget, Term


@dataclass(frozen=True, kw_only=True)
class ReconciledBudget:
    """A budget and what it was cut from: ``tracks`` maps a rank to its terms' instants.

    ``offsets_ns`` was added to each rank's times.
    """

    budget: Budget
    tracks: Mapping[int, Mapping[Term, Intervals]]
    offsets_ns: Mapping[int, int]


def close(
    ranks: Sequence[Lanes], offsets_ns: Mapping[int, int] | None = None, clock_ns: int | None = None
) -> ReconciledBudget:
    """Close the budget of a window.

    ``offsets_ns`` is added to a rank's times to put them on one clock, known to ``clock_ns``;
    without a measured one, what the collectives themselves allow is used.
    """
    unsure = [f"rank {lanes.rank}: {u}" for lanes in ranks for u in lanes.unsure]
    matched = match(ranks)
    if offsets_ns is None:
        offsets_ns, clock_ns = _offsets(ranks, matched, unsure)
    common = [lanes.shifted(offsets_ns.get(lanes.rank, 0)) for lanes in ranks]
    if any(offsets_ns.values()):
        matched = match(common)
    if matched.refused:
        unsure.append(f"communication is not divided into wait and transfer: {matched.refused}")
    if matched.lone:
        unsure.append(f"{matched.lone} collectives are missing in some ranks' traces: undivided")
    steps = min(len(lanes.edges) for lanes in common)
    if any(len(lanes.edges) != steps for lanes in common):
        unsure.append("ranks recorded different numbers of steps: only the common ones count")
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
    if clock_ns is not None and not matched.refused:
        unsure += _disagreements(closed, clock_ns)
    return ReconciledBudget(
        budget=Budget(
            device=common[0].device,
            ranks=closed,
            clock_ns=clock_ns,
            blame=_blame(common, closed, matched, steps),
            unsure=tuple(unsure),
            capture=common[0].capture,
        ),
        tracks=tracks,
        offsets_ns=offsets_ns,
    )


class _Seen(NamedTuple):
    """A rank's operation, when the last rank came, and how long it takes if nobody waits in it.

    The latter is its own duration where ranks need not meet in it.
    """

    op: Op
    last_start: int
    shortest: int


def _tracks(
    lane: Lanes, num_edges: int, operations: Sequence[_Seen], divided: bool
) -> dict[Term, Intervals]:
    """When each term has the step: each takes what those before it left."""
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
    """One rank's terms, counted for every step."""
    edges = lane.edges[:num_edges]
    terms = {str(term): tuple(per_window(track, edges).tolist()) for term, track in tracks.items()}
    step_ns = tuple(np.diff(edges).tolist())
    for step, whole in enumerate(step_ns):
        if (
            sum(term[step] for term in terms.values()) != whole
        ):  # no assert: it must hold under -O, too
            raise AssertionError(f"rank {lane.rank} step {step} is not closed")
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
    """Clock offsets that the collectives allow: none where that is possible."""
    offsets: dict[int, int] = {}
    widest: int | None = None
    for lane in ranks[1:]:
        bounds = clock_bounds(matched, ranks[0].rank, lane.rank)
        if bounds is None:
            continue
        low, high = bounds
        if not low <= 0 <= high:
            offsets[lane.rank] = (low + high) // 2
            unsure.append(
                f"rank {lane.rank}: its clock is off by {offsets[lane.rank] / 1e6:+.3f} ms,"
                f" corrected to within {(high - low) / 2e6:.3f} ms"
            )
        widest = max(widest or 0, (high - low) // 2)
    return offsets, widest


def _disagreements(ranks: Sequence[RankBudget], clock_ns: int) -> list[str]:
    """Where the two estimates of waiting differ by more than the clocks and 5 % of the step."""
    sentences = []
    for rank in ranks:
        if rank.wait_free_ns is None:
            continue
        by_clock = rank.mean_ns(Term.WAIT)
        free = sum(rank.wait_free_ns) / len(rank.step_ns)
        step_ns = sum(rank.step_ns) / len(rank.step_ns)
        if abs(by_clock - free) > clock_ns + 0.05 * step_ns:
            sentences.append(
                f"rank {rank.rank}: waits {by_clock / 1e6:.2f} ms a step by the clocks,"
                f" {free / 1e6:.2f} ms by durations alone"
            )
    return sentences


def _blame(
    lanes: Sequence[Lanes], closed: Sequence[RankBudget], matched: Matched, num_edges: int
) -> Blame | None:
    """The rank that the others' exposed waits were for, and its excess over the median rank."""
    if len(closed) < 2:
        return None
    busy = {lane.rank: merge(lane.compute, lane.move) for lane in lanes}
    edges = {lane.rank: lane.edges[:num_edges] for lane in lanes}
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    opening = min(matched.meetings, key=lambda meeting: meeting.last_start, default=None)
    for m in matched.meetings:
        for rank, op in m.ops.items():
            low, high = int(edges[rank][0]), int(edges[rank][-1])
            if m is opening:  # that a capture begins later on one rank is nobody's waiting
                low = max(low, op.start + max(0, int(edges[m.last][0]) - low))
            start = max(op.start, op.waited, low)
            end = min(op.end, m.last_start, high)
            if rank != m.last and end > start:
                spans.setdefault((m.last, rank), []).append((start, end))
    steps = len(closed[0].step_ns)
    gross = np.zeros(steps, dtype=np.int64)
    net = {budget.rank: np.zeros(steps, dtype=np.int64) for budget in closed}
    for (late, rank), pairs in spans.items():
        exposed = per_window(subtract(intervals.of(pairs), busy[rank]), edges[rank])
        gross += exposed
        net[late] += exposed
        net[rank] -= exposed
    # Within a step, a rank that is late because it waited itself passes the blame on.
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
