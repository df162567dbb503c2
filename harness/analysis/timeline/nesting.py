"""Ranges of a thread nest: what each one did by itself, and which one an instant falls into."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.analysis.timeline.reader import Trace


def self_ns(trace: Trace, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Duration less that of the direct children, for rows of nesting ranges."""
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
    """For each instant the innermost of ``rows`` that is open on the thread then; -1 for none."""
    places = np.full(len(instants), -1, dtype=np.int64)
    for here in levels(trace, rows[trace.thread[rows] == thread]):
        at = np.searchsorted(trace.start[here], instants, side="right") - 1
        inside = (at >= 0) & (trace.end[here[np.maximum(at, 0)]] > instants)
        places[inside] = here[at[inside]]
    return places


def levels(trace: Trace, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rows of one thread by their depth, the outermost first: those of one depth are disjoint."""
    ends = np.sort(trace.end[rows])
    depth = np.arange(len(rows)) - np.searchsorted(ends, trace.start[rows], side="right")
    for level in range(int(depth.max(initial=-1)) + 1):
        yield rows[depth == level]
