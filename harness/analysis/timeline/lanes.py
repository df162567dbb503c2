"""The lanes of one rank: the times in which it computed, communicated or did other work."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline import intervals
from harness.analysis.timeline.intervals import Intervals, union
from harness.analysis.timeline.reader import Trace
from harness.base.errors import ScaleproofError
from harness.record import Category
from harness.record.budget import OPERATORS
from harness.record.spans import category_of

STEP = re.compile(r"ProfilerStep#\d+$")
_DATA = re.compile(r"enumerate\(DataLoader\)#.*__next__")
#: Bytes per element, by the type names that torch writes for tensors and for collectives.
_ITEM_BYTES = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "bfloat16": 2, "half": 2,
    "short": 2, "short int": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1,
    "signed char": 1,
}  # fmt: skip


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element of this type, or -1 if the type is unknown."""
    name = dtype.lower().removeprefix("c10::")
    return 1 if name.startswith("float8") else _ITEM_BYTES.get(name, -1)


def rows_of(trace: Trace, mask: NDArray[np.bool_]) -> Intervals:
    """Return the times that the selected rows cover."""
    return union(trace.start[mask], trace.end[mask])


def host_steps(
    trace: Trace, step_name: str | None = None
) -> tuple[NDArray[np.int64], int, tuple[str, ...]]:
    """Return the edges of the steps on the host, the thread that runs them, and notes.

    If several threads run steps, the thread that spends most time in them is used. Steps of zero
    length are omitted. The notes state the assumptions that had to be made.
    """
    pattern = STEP if step_name is None else re.compile(fnmatch.translate(step_name))
    marked = trace.of_cat("user_annotation", "cpu_op") & trace.named(pattern)
    rows = np.flatnonzero(marked & (trace.end > trace.start))
    if len(rows):
        spent = np.bincount(trace.thread[rows], weights=trace.end[rows] - trace.start[rows])
        main = int(spent.argmax())
        of_main = rows[trace.thread[rows] == main]
        more = len(set(trace.thread[rows].tolist())) - 1
        edges = np.unique(np.append(trace.start[of_main], trace.end[of_main[-1]]))
        notes = [f"{more} other threads also run steps, which are ignored"] if more else []
        if step_name is None and (gone := _missing(trace, of_main)):
            notes.append(
                f"{gone} steps are missing: their time counts as part of the steps before them"
            )
        return edges, main, tuple(notes)
    repeated = ", ".join(f"{name} ({times}x)" for name, times in _repeated(trace))
    if step_name is not None:
        raise ScaleproofError(
            f"no annotation is named {step_name!r}",
            where=trace.path,
            expected=f"the name of a repeated annotation, one of: {repeated or 'none'}",
            fix="scaleproof report timeline PATH --ranges",
        )
    busiest = int(np.bincount(trace.thread).argmax())
    edges = np.array([trace.start.min(), trace.end.max()], dtype=np.int64)
    reason = "no ProfilerStep in the trace: the whole trace counts as one step"
    if repeated:
        reason += f"; to count an annotation as a step, give --step-name one of {repeated}"
    return edges, busiest, (reason,)


def _missing(trace: Trace, rows: NDArray[np.int64]) -> int:
    """Return how many step numbers of the profiler are missing between the first and the last."""
    numbers = {int(trace.names[n].partition("#")[2]) for n in trace.name[rows].tolist()}
    return max(numbers) - min(numbers) + 1 - len(numbers)


def _repeated(trace: Trace) -> list[tuple[str, int]]:
    """Return the three repeated annotations that cover most time, with their counts.

    One of them may be the training step.
    """
    rows = np.flatnonzero(trace.of_cat("user_annotation"))
    count = np.bincount(trace.name[rows], minlength=len(trace.names))
    spent = np.bincount(trace.name[rows], weights=trace.end[rows] - trace.start[rows])
    longest = sorted(np.flatnonzero(count > 1).tolist(), key=lambda n: -spent[n])
    return [(trace.names[n], int(count[n])) for n in longest[:3]]


def marked(trace: Trace, *categories: Category) -> NDArray[np.bool_]:
    """Return a mask of the rows that are the harness's spans of these categories."""
    wanted = [i for i, name in enumerate(trace.names) if category_of(name) in categories]
    return np.isin(trace.name, wanted)


def data(trace: Trace) -> NDArray[np.bool_]:
    """Return a mask of the rows in which a rank fetches data."""
    return trace.named(_DATA) | marked(trace, Category.DATA)


def self_ns(trace: Trace, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return each row's duration minus the durations of its direct children, in ns."""
    remaining_ns = trace.end - trace.start
    for thread in np.unique(trace.thread[mask]):
        above = np.empty(0, dtype=np.int64)
        for here in levels(trace, np.flatnonzero(mask & (trace.thread == thread))):
            if len(above):
                at = np.searchsorted(trace.start[above], trace.start[here], side="right") - 1
                spent = trace.end[here] - trace.start[here]
                np.subtract.at(remaining_ns, above[np.maximum(at, 0)], spent)
            above = here
    return remaining_ns


def innermost(
    trace: Trace, rows: NDArray[np.int64], thread: int, instants: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, for each instant, the innermost row of a thread that covers it; -1 if there is none.

    Only ``rows`` are considered.
    """
    places = np.full(len(instants), -1, dtype=np.int64)
    for here in levels(trace, rows[trace.thread[rows] == thread]):
        at = np.searchsorted(trace.start[here], instants, side="right") - 1
        inside = (at >= 0) & (trace.end[here[np.maximum(at, 0)]] > instants)
        places[inside] = here[at[inside]]
    return places


def levels(trace: Trace, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of one thread by their depth of nesting, outermost first.

    Rows of the same depth are disjoint.
    """
    ends = np.sort(trace.end[rows])
    depth = np.arange(len(rows)) - np.searchsorted(ends, trace.start[rows], side="right")
    for level in range(int(depth.max(initial=-1)) + 1):
        yield rows[depth == level]


_P2P = ("send", "recv")
#: Group of a communication that does not identify other ranks, such as one of the harness's spans.
ALONE = "alone"
_SETS = ("compute", "move", "data", "launch", "queued")


@dataclass(frozen=True, kw_only=True)
class Op:
    """A communication of one rank; times are in ns of the rank's clock.

    ``payload`` is the number of elements of its input, and ``item_bytes`` the bytes per element.
    ``size`` is the number of ranks in the group. ``seq`` is the sequence number within the group.
    ``peer`` is the other rank of a send or recv. Each of these is -1 if the trace does not state
    it. ``waited`` is the time from which on the rank had no other work. The communication cannot
    have delayed the rank before that time.
    """

    start: int
    end: int
    kind: str
    group: str
    waited: int = 0
    size: int = -1
    seq: int = -1
    payload: int = -1
    item_bytes: int = -1
    peer: int = -1

    @property
    def p2p(self) -> bool:
        """Return whether this is a send or recv instead of a collective of a group."""
        return self.kind in _P2P


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """The lanes of one rank; each is a set of times in which the rank did one kind of work.

    ``edges`` are the times between steps: step k is [edges[k], edges[k + 1]). ``compute`` holds the
    times of compute, ``move`` of copies to and from the device, ``data`` of loading data, and
    ``launch`` of launching kernels or issuing communications. ``queued`` holds the times in which
    the device was idle although its next kernel was already queued. ``ops`` are the communications.
    ``unsure`` lists notes on incomplete data, and ``capture`` says whether operators were recorded.
    """

    rank: int
    world_size: int
    device: str
    edges: NDArray[np.int64]
    compute: Intervals
    move: Intervals
    ops: tuple[Op, ...]
    data: Intervals
    launch: Intervals
    queued: Intervals
    unsure: tuple[str, ...] = ()
    capture: str = OPERATORS

    @property
    def communication(self) -> Intervals:
        """Return the times in which any communication was in progress."""
        return intervals.of((operation.start, operation.end) for operation in self.ops)

    @property
    def awaited(self) -> Intervals:
        """Return the times in which any communication could delay the rank."""
        return intervals.of(
            (max(operation.start, operation.waited), operation.end) for operation in self.ops
        )

    def shifted(self, offset_ns: int) -> Lanes:
        """Return the lanes with ``offset_ns`` added to all times."""
        if not offset_ns:
            return self
        moved = {name: getattr(self, name) + offset_ns for name in ("edges", *_SETS)}
        ops = (
            replace(
                operation,
                start=operation.start + offset_ns,
                end=operation.end + offset_ns,
                waited=operation.waited + offset_ns,
            )
            for operation in self.ops
        )
        return replace(self, ops=tuple(ops), **moved)
