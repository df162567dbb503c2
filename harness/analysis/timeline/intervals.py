"""Set operations on sets of times, which are stored as sorted, disjoint, half-open intervals.

A set is an (n, 2) array of int64 nanoseconds. All arithmetic is on exact integers. The parts into
which a step is divided therefore add up to the step exactly.
"""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Starts and ends in ns, of shape (n, 2). The intervals are ascending, disjoint and not empty.
Intervals: TypeAlias = NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def union(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Intervals:
    """Return the union of intervals, which may overlap or be empty."""
    full = ends > starts
    starts = starts[full]
    ends = ends[full]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack([starts[first], ends[last]], axis=1)


def of(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """Return the union of (start, end) pairs. Pairs that end before they start count as empty."""
    edges = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return union(edges[:, 0], edges[:, 1])


def merge(*sets: Intervals) -> Intervals:
    """Return the union of several sets."""
    edges = np.concatenate([EMPTY, *sets])
    return union(edges[:, 0], edges[:, 1])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the intersection of two sets."""
    if not len(a) or not len(b):
        return EMPTY
    low = np.searchsorted(b[:, 1], a[:, 0], side="right")  # the first of b that ends after a starts
    high = np.searchsorted(b[:, 0], a[:, 1], side="left")  # the first of b that starts after a ends
    count = np.maximum(high - low, 0)
    indices = np.repeat(np.arange(len(a)), count)
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    theirs = np.repeat(low, count) + offset
    return np.stack(
        [np.maximum(a[indices, 0], b[theirs, 0]), np.minimum(a[indices, 1], b[theirs, 1])], axis=1
    )


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the part of ``a`` that is not in ``b``."""
    if not len(a) or not len(b):
        return a
    low = min(a[0, 0], b[0, 0])
    high = max(a[-1, 1], b[-1, 1])
    edges = np.concatenate(([low], b.ravel(), [high]))
    gaps = edges.reshape(-1, 2)
    return intersect(a, gaps[gaps[:, 1] > gaps[:, 0]])


def total(a: Intervals) -> int:
    """Return the length of a set in ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def covered(a: Intervals, instants: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many nanoseconds of ``a`` lie before each instant."""
    if not len(a):
        return np.zeros(len(instants), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))
    # number of intervals that begin at or before the instant
    index = np.searchsorted(a[:, 0], instants, side="right")
    last = np.maximum(index - 1, 0)
    over = np.where(index > 0, np.minimum(instants, a[last, 1]) - a[last, 0], 0)
    return np.asarray(np.where(index > 0, before[last] + over, 0), dtype=np.int64)


def per_window(a: Intervals, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nanoseconds of ``a`` in each window [edges[k], edges[k+1]).

    The result has len(edges) - 1 values.
    """
    return np.diff(covered(a, edges))
