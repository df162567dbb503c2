"""Which communications of the ranks belong together, and what that says of waits and clocks.

A collective is matched by its sequence number where the trace has one, else by its order within
its group and kind; then counts and sizes must agree, or nothing is matched: never a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.timeline.lanes import ALONE, Lanes, Op

#: Some ranks may leave these before the others have come.
_ONE_WAY = frozenset({"broadcast", "gather", "scatter", "reduce"})


@dataclass(frozen=True, kw_only=True)
class CollectiveMatch:
    """One communication seen from all its ranks: rank -> operation."""

    ops: Mapping[int, Op]

    @property
    def last(self) -> int:
        return max(self.ops, key=lambda r: (self.ops[r].start, r))

    @property
    def last_start(self) -> int:
        """When the last rank came, ns."""
        return max(operation.start for operation in self.ops.values())

    @property
    def shortest(self) -> int:
        """The shortest duration over ranks, ns: nobody waited in that one, whatever the clocks."""
        return min(operation.end - operation.start for operation in self.ops.values())

    @property
    def p2p(self) -> bool:
        """Whether it is a send with its recv."""
        return next(iter(self.ops.values())).p2p

    @property
    def symmetric(self) -> bool:
        """Whether no rank can leave before the last has come."""
        return not self.p2p and next(iter(self.ops.values())).kind not in _ONE_WAY


@dataclass(frozen=True, kw_only=True)
class Matched:
    """All meetings, or why there are none; ``lone`` counts those that some of their ranks miss."""

    meetings: tuple[CollectiveMatch, ...] = ()
    refused: str = ""
    lone: int = 0


def match(ranks: Sequence[Lanes]) -> Matched:
    """Every collective with all ranks' parts of it, every message with its two ends."""
    size = max(rank.world_size for rank in ranks)
    if not any(rank.ops for rank in ranks):
        return Matched()
    if size < 0 and len(ranks) == 1:
        return Matched(refused="only 1 traces were given")
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
            lone += 1  # at the edge of a capture
            continue
        if refused := _unmatched(key, by_rank, len(ranks)):
            return Matched(refused=refused)
        together = zip(*by_rank.values(), strict=True)
        meetings += [CollectiveMatch(ops=dict(zip(by_rank, ops, strict=True))) for ops in together]
    return Matched(meetings=tuple(meetings), lone=lone)


def _unmatched(key: tuple[object, ...], by_rank: Mapping[int, Sequence[Op]], num_ranks: int) -> str:
    """Why the operations of one key are no meetings; empty if they are."""
    collective = key[0] == "collective"
    kind = str(key[1])
    if not collective and len(by_rank) != 2:
        return f"a {kind} has no matching peer operation in these traces"
    counts = {r: len(ops) for r, ops in by_rank.items()}
    if len(set(counts.values())) > 1:
        return f"{kind}: the ranks' counts differ, {counts}"
    if collective and len(by_rank) != num_ranks and not key[2]:
        return f"{kind}: only ranks {sorted(by_rank)} issued it"
    for together in zip(*by_rank.values(), strict=True):
        sizes = {op.payload for op in together if op.payload >= 0}
        if collective and len(sizes) > 1:
            return f"{kind}: ranks disagree on its size, {sorted(sizes)}"
    return ""


def _whole_groups(by_key: Mapping[tuple[object, ...], Mapping[int, Sequence[Op]]]) -> bool:
    """Whether all of every group's ranks are there, though not all of the world's."""
    return all(
        len(by_rank) == (2 if key[0] == "p2p" else next(iter(by_rank.values()))[0].size)
        for key, by_rank in by_key.items()
    )


def _key(rank: int, op: Op) -> tuple[object, ...]:
    """The key that operations share if they belong together."""
    if op.p2p and op.peer >= 0:
        ends = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
        return ("p2p", "send", op.group, *ends)
    return ("collective", op.kind, op.group, op.seq)


def clock_bounds(matched: Matched, reference: int, rank: int) -> tuple[int, int] | None:
    """The offset (ns) of a rank's clock to the reference's lies within, by what was possible.

    No rank leaves a synchronising collective before the last one has come, so
    theta in [max(start_i - end_j), min(end_i - start_j)]: what is to be added to rank j's times.
    """
    low, high = None, None
    for meeting in matched.meetings:
        if not meeting.symmetric or reference not in meeting.ops or rank not in meeting.ops:
            continue
        i, j = meeting.ops[reference], meeting.ops[rank]
        low = i.start - j.end if low is None else max(low, i.start - j.end)
        high = i.end - j.start if high is None else min(high, i.end - j.start)
    return None if low is None or high is None else (low, high)
