"""Views of profiled steps: kernels, idle time, communications, and differences between two runs."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import lanes
from harness.analysis.timeline.close import CollectiveMatch, ReconciledBudget, close_launch, match
from harness.analysis.timeline.intervals import Intervals, covered
from harness.analysis.timeline.lanes import Lanes, innermost
from harness.analysis.timeline.reader import Trace
from harness.base.documents import Json
from harness.record import Budget, LaunchRecord, Operator, Term
from harness.record.fabric import OPERATIONS, factor

#: Kinds of host calls to the driver of a device.
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver")
#: Kinds of activity of a device.
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Part(NamedTuple):
    """One rank of the profiled steps. ``terms`` are in ns of the rank's clock, like its trace."""

    trace: Trace
    lanes: Lanes
    terms: dict[Term, Intervals]


@dataclass(frozen=True, kw_only=True)
class ShownBudget:
    """The profiled steps of all ranks (a window) with their budget.

    ``traces`` and ``lanes`` have the same order of ranks. ``readings`` are measurements of the
    devices, such as clock rates and power.
    """

    traces: Sequence[Trace]
    lanes: Sequence[Lanes]
    closed: ReconciledBudget
    readings: Sequence[Json] = ()

    @property
    def rank_steps(self) -> int:
        """Return the number of steps, summed over ranks. Totals are divided by it."""
        return len(self.traces) * self.closed.budget.steps

    def parts(self) -> Iterator[Part]:
        """Yield each rank with its terms on the rank's clock."""
        for trace, lane in zip(self.traces, self.lanes, strict=True):
            offset = self.closed.offsets_ns.get(lane.rank, 0)
            tracks = self.closed.tracks[lane.rank]
            yield Part(trace, lane, {term: instants - offset for term, instants in tracks.items()})


def shown(folder: Path, launch: LaunchRecord) -> ShownBudget:
    """Return the profiled steps of a launch. Raise ScaleproofError if its traces are unreadable."""
    traces, rank_lanes, closed = close_launch(folder, launch.launch, launch.ranks)
    devices = folder / "launches" / launch.launch / "gpus.json"
    readings = json.loads(devices.read_text(encoding="utf-8")) if devices.is_file() else ()
    return ShownBudget(traces=traces, lanes=rank_lanes, closed=closed, readings=readings)


#: Terms in which a device works.
BUSY = (Term.COMPUTE, Term.MOVE, Term.TRANSFER, Term.WAIT, Term.BUBBLE, Term.UNDIVIDED)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The kernels of one name that one operator launched, averaged over steps and ranks.

    ``by`` is the operator, or an empty string if it is unknown. ``ns`` is the part of the term's
    time during which the kernels ran. If kernels run concurrently, each of them counts this time,
    so the sum over kernels may exceed the term. ``count`` is the number of kernels.
    """

    term: Term
    name: str
    by: str
    ns: int
    count: float


def kernels(window: ShownBudget, most: int = 4) -> tuple[Kernel, ...]:
    """Return the ``most`` longest kernels of each term, in the order of the terms.

    Return an empty tuple if the ranks compute on the host.
    """
    spent: Counter[tuple[Term, str, str]] = Counter()
    count: Counter[tuple[Term, str, str]] = Counter()
    for trace, _, terms in window.parts():
        rows = np.flatnonzero(trace.of_cat(*DEVICE))
        launchers = launched_by(trace, rows)
        for term in BUSY:
            instants = terms.get(term)
            if instants is None or not len(instants):
                continue
            inside = covered(instants, trace.end[rows]) - covered(instants, trace.start[rows])
            for at in np.flatnonzero(inside).tolist():
                launcher = trace.names[trace.name[launchers[at]]] if launchers[at] >= 0 else ""
                key = (term, trace.names[trace.name[rows[at]]], launcher)
                spent[key] += int(inside[at])
                count[key] += 1
    share = window.rank_steps
    busy = [
        Kernel(term=t, name=n, by=launcher, ns=ns // share, count=count[t, n, launcher] / share)
        for (t, n, launcher), ns in spent.items()
    ]
    return tuple(
        k
        for term in BUSY
        for k in _longest([kernel for kernel in busy if kernel.term is term], most)
    )


def _longest(some: Sequence[Kernel], most: int) -> list[Kernel]:
    return sorted(some, key=lambda kernel: (-kernel.ns, kernel.name, kernel.by))[:most]


def launched_by(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the innermost operator that launched each device row, or -1."""
    calls = np.flatnonzero(trace.of_cat(*CALLS) & (trace.correlation >= 0))
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    launcher = np.full(len(rows), -1, dtype=np.int64)
    if not len(calls) or not len(rows):
        return launcher
    wanted = trace.correlation[rows]
    at = np.minimum(np.searchsorted(trace.correlation[calls], wanted), len(calls) - 1)
    call = np.where(trace.correlation[calls[at]] == wanted, calls[at], -1)
    operators = np.flatnonzero(trace.of_cat("cpu_op"))
    for thread in np.unique(trace.thread[call[call >= 0]]).tolist():
        launched = np.flatnonzero((call >= 0) & (trace.thread[call] == thread))
        launcher[launched] = innermost(trace, operators, thread, trace.start[call[launched]])
    return launcher


#: Terms in which a device waits for its host.
LAZY = (Term.IDLE, Term.LAUNCH, Term.OTHER)
#: Descriptions of driver calls by patterns of their names; the first match counts.
_DOES = (
    ("waits for the device", re.compile(r"Synchronize|EventQuery|StreamQuery|WaitEvent")),
    ("copies, and may wait", re.compile(r"Memcpy|Memset")),
    (
        "allocates memory",
        re.compile(r"Malloc|Free|HostAlloc|HostRegister|Mem(Create|Map|Pool)"),
    ),
    ("launches", re.compile(r"Launch")),
    ("loads code", re.compile(r"Module|Library|GetFunction|FuncGet|FuncSet")),
)
PYTHON = "Python, between operators"


@dataclass(frozen=True, kw_only=True)
class Idleness:
    """One cause of idle time of a device.

    ``where`` is the call or operator of the host during which the device was idle. ``ns`` is the
    idle time, averaged over steps and ranks.
    """

    term: Term
    cause: str
    where: str
    ns: int


def idleness(window: ShownBudget, most: int = 4) -> tuple[Idleness, ...]:
    """Return the ``most`` longest causes of idle time of each term.

    Return an empty tuple if the ranks compute on the host, because gaps are time in Python there.
    """
    spent: Counter[tuple[Term, str, str]] = Counter()
    for trace, lane, terms in window.parts():
        if lane.device == "cpu":
            continue
        for term in LAZY:
            if len(instants := terms.get(term, ())):
                spent += _of_rank(trace, term, np.asarray(instants))
    idle = [
        Idleness(term=t, cause=cause, where=where, ns=ns // window.rank_steps)
        for (t, cause, where), ns in spent.items()
    ]
    idle.sort(key=lambda i: (-i.ns, i.cause, i.where))
    return tuple(i for t in LAZY for i in [i for i in idle if i.term is t and i.ns][:most])


def _of_rank(trace: Trace, term: Term, instants: Intervals) -> Counter[tuple[Term, str, str]]:
    """Attribute the times of a term to the host calls or operators that run in them.

    Only threads that train are considered. If several of them run a call or operator, the one that
    started last counts.
    """
    rows = np.flatnonzero(trace.of_cat("cpu_op", *CALLS))
    is_call = trace.of_cat(*CALLS)
    edges = np.unique(np.concatenate([trace.start[rows], trace.end[rows], instants.ravel()]))
    spans = np.diff(covered(instants, edges))
    starts = edges[:-1][spans > 0]
    spans = spans[spans > 0]
    doing = np.full(len(starts), -1, dtype=np.int64)
    for thread in _threads(trace):
        holding = innermost(trace, rows, thread, starts)
        later = holding >= 0
        later[later] = (doing[later] < 0) | (
            trace.start[holding[later]] > trace.start[doing[later]]
        )
        doing[later] = holding[later]
    spent: Counter[tuple[Term, str, str]] = Counter()
    for row in np.unique(doing).tolist():
        ns = int(spans[doing == row].sum())
        if row < 0:
            spent[term, PYTHON, ""] += ns
            continue
        name = trace.names[trace.name[row]]
        cause = _cause(name) if is_call[row] else "an operator works on the host"
        spent[term, cause, name] += ns
    return spent


def _threads(trace: Trace) -> list[int]:
    """Return the thread that runs the steps and the threads that call the device's driver."""
    _, main, _ = lanes.host_steps(trace)
    calling: NDArray[np.int32] = np.unique(trace.thread[trace.of_cat(*CALLS)])
    return sorted({main, *calling.tolist()})


def _cause(call: str) -> str:
    return next((does for does, name in _DOES if name.search(call)), "calls the driver")


#: Standard names of collectives, by the names that backends write into traces.
_OPERATIONS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather",
    "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "broadcast": "broadcast",
    "all_to_all": "all_to_all", "alltoall": "all_to_all", "all_to_allv": "all_to_all",
    "send": "send_recv", "recv": "send_recv", "reducescatter": "reduce_scatter",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Communication:
    """All communications of one kind, size and set of ranks; times are in ns per communication.

    ``count`` is the number of communications in a step. ``shortest_ns`` is the shortest duration
    among the ranks, because the rank with this duration did not wait. ``waited_ns`` is the mean
    time from a rank's entry to the entry of the last rank. ``late`` is the rank that most often
    entered last, and ``late_share`` the share of communications in which it did. ``bytes`` is the
    size of the input of one rank, or -1 if the trace does not state it. ``bus_bps`` is the rate of
    the busiest link in B/s, as in a bandwidth sweep of the fabric.
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
    """Return the communications of the profiled steps, in descending order of their total time.

    Return an empty tuple if the operations of the ranks could not be matched.
    """
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
        payload = size * (len(ranks) if kind == "all_gather" else 1)  # bytes of all ranks together
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


@dataclass(frozen=True, kw_only=True)
class TermChange:
    """The time of a term, kernel or operator before and after a change.

    The times are in ns, averaged over steps and ranks; 0 if the name is absent.
    """

    name: str
    before_ns: float
    after_ns: float

    @property
    def more_ns(self) -> float:
        """Return the increase in ns."""
        return self.after_ns - self.before_ns


def terms(before: Budget, after: Budget) -> tuple[TermChange, ...]:
    """Return the changes of all terms of both budgets, which add up to the change of the step."""
    both = ((term, before.mean_ns(term), after.mean_ns(term)) for term in Term)
    return tuple(TermChange(name=term, before_ns=a, after_ns=b) for term, a, b in both if a or b)


def names(
    before: Sequence[Operator], after: Sequence[Operator], whole: bool, most: int = 8
) -> tuple[TermChange, ...]:
    """Return the changes of kernels or operators by name, the largest first.

    ``whole`` says that both lists are complete. Otherwise a name that one list lacks is omitted,
    because it may be absent only due to its short time.
    """
    was, now = (
        {operator.name: operator.self_ns for operator in operators} for operators in (before, after)
    )
    operations = {**was, **now} if whole else was.keys() & now.keys()
    changes = [
        TermChange(name=name, before_ns=was.get(name, 0), after_ns=now.get(name, 0))
        for name in operations
    ]
    changes.sort(key=lambda change: (-abs(change.more_ns), change.name))
    return tuple(change for change in changes[:most] if change.more_ns)
