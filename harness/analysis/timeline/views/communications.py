"""Every communication of a step: how long ranks waited in it, for whom, and how fast it was."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis.timeline.match import CollectiveMatch, match
from harness.analysis.timeline.views.window import ShownBudget
from harness.record.fabric import OPERATIONS, factor

#: The operations of the field by the names that backends write into traces.
_OPERATIONS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather",
    "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "broadcast": "broadcast",
    "all_to_all": "all_to_all", "alltoall": "all_to_all", "all_to_allv": "all_to_all",
    "send": "send_recv", "recv": "send_recv", "reducescatter": "reduce_scatter",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Communication:
    """All communications of one kind, size and set of ranks; ns in a mean one of them.

    ``shortest_ns`` is the shortest duration among its ranks: nobody waits in that one.
    ``waited_ns`` is how long a mean rank was there before the last one. ``late`` is the rank that
    came last most often, in ``late_share`` of them. ``bytes`` are one rank's input, -1 where the
    trace does not say. ``bus_bps`` is what the busiest link carries, as in a sweep of the fabric.
    """

    kind: str
    ranks: tuple[int, ...]
    bytes: int
    count: float
    shortest_ns: float
    waited_ns: float
    late: int
    late_share: float
    bus_bps: float | None


def communications(window: ShownBudget) -> tuple[Communication, ...]:
    """The longest first; none where the ranks' operations could not be matched."""
    steps = window.closed.budget.steps
    offsets = window.closed.offsets_ns
    lanes = [lane.shifted(offsets.get(lane.rank, 0)) for lane in window.lanes]
    windows = {lane.rank: (lane.edges[0], lane.edges[steps]) for lane in lanes}
    alike: dict[tuple[str, tuple[int, ...], int], list[CollectiveMatch]] = defaultdict(list)
    for meeting in match(lanes).meetings:
        rank, op = next(iter(meeting.ops.items()))
        if len(meeting.ops) > 1 and windows[rank][0] <= op.start < windows[rank][1]:
            size = op.payload * op.item_bytes if min(op.payload, op.item_bytes) >= 0 else -1
            kind = _OPERATIONS.get(op.kind, op.kind)
            alike[kind, tuple(sorted(meeting.ops)), size].append(meeting)
    kinds = [_communication(*key, meetings, steps) for key, meetings in alike.items()]
    return tuple(
        sorted(
            kinds,
            key=lambda communication: (
                -communication.count * (communication.shortest_ns + communication.waited_ns)
            ),
        )
    )


def _communication(
    kind: str, ranks: tuple[int, ...], size: int, meetings: Sequence[CollectiveMatch], steps: int
) -> Communication:
    shortest = fmean(meeting.shortest for meeting in meetings)
    waits = (
        min(operation.end, meeting.last_start) - operation.start
        for meeting in meetings
        for operation in meeting.ops.values()
    )
    late, times = Counter(meeting.last for meeting in meetings).most_common(1)[0]
    rate = None
    if kind in OPERATIONS and size > 0 and shortest > 0:
        payload = size * (len(ranks) if kind == "all_gather" else 1)  # of all ranks together
        rate = 1e9 * payload * factor(kind, len(ranks)) / shortest
    return Communication(
        kind=kind,
        ranks=ranks,
        bytes=size,
        count=len(meetings) / steps,
        shortest_ns=shortest,
        waited_ns=fmean(waits),
        late=late,
        late_share=times / len(meetings),
        bus_bps=rate,
    )
