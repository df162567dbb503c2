"""What rows of a trace mark: steps, loading, our own spans."""

import re

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.intervals import Intervals, union
from harness.analysis.timeline.reader import Trace
from harness.record import Category
from harness.record.spans import category_of

STEP = re.compile(r"ProfilerStep#\d+$")
_DATA = re.compile(r"enumerate\(DataLoader\)#.*__next__")


def rows_of(trace: Trace, mask: NDArray[np.bool_]) -> Intervals:
    return union(trace.start[mask], trace.end[mask])


def host_steps(trace: Trace) -> tuple[NDArray[np.int64], int, tuple[str, ...]]:
    """Edges of the steps on the host, the thread that makes them, and what had to be assumed.

    Of several threads that make steps the one that spends most time in them counts. Steps without
    a length are left out.
    """
    rows = np.flatnonzero(trace.of_cat("user_annotation", "cpu_op") & trace.named(STEP))
    if len(rows):
        spent = np.bincount(trace.thread[rows], weights=trace.end[rows] - trace.start[rows])
        main = int(spent.argmax())
        mine = rows[trace.thread[rows] == main]
        more = len(set(trace.thread[rows].tolist())) - 1
        edges = np.unique(np.append(trace.start[mine], trace.end[mine[-1]]))
        return edges, main, (f"{more} more threads make steps: left out",) if more else ()
    busiest = int(np.bincount(trace.thread).argmax())
    edges = np.array([trace.start.min(), trace.end.max()], dtype=np.int64)
    return edges, busiest, ("no ProfilerStep in the trace: the whole trace counts as one step",)


def own(trace: Trace, *categories: Category) -> NDArray[np.bool_]:
    """Rows that are our own spans of these categories."""
    wanted = [i for i, n in enumerate(trace.names) if category_of(n) in categories]
    return np.isin(trace.name, wanted)


def data(trace: Trace) -> NDArray[np.bool_]:
    return trace.named(_DATA) | own(trace, Category.DATA)
