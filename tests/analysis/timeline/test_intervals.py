"""Interval arithmetic, compared with Python sets of instants."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, strategies as st

from harness.analysis.timeline.intervals import (
    Intervals,
    intersect,
    merge,
    per_window,
    subtract,
    total,
    union,
)

raw = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def made(pairs: list[tuple[int, int]]) -> Intervals:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for low, high in pairs for t in range(low, high)}


def of(a: Intervals) -> set[int]:
    assert (a[:, 0] < a[:, 1]).all() and (a[1:, 0] >= a[:-1, 1]).all(), (
        "intervals must be sorted, disjoint, and not empty"
    )
    return {t for low, high in a.tolist() for t in range(low, high)}


@given(raw, raw)
def test_interval_operations_equal_set_operations(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    x, y = made(a), made(b)
    assert of(x) == instants(a)
    assert of(merge(x, y)) == instants(a) | instants(b)
    assert of(intersect(x, y)) == instants(a) & instants(b)
    assert of(subtract(x, y)) == instants(a) - instants(b)
    assert total(x) == len(instants(a))


@given(raw, st.lists(st.integers(0, 40), min_size=2, max_size=6))
def test_windows_count_the_instants_inside(a: list[tuple[int, int]], cuts: list[int]) -> None:
    edges = np.array(sorted(cuts), dtype=np.int64)
    counts = per_window(made(a), edges).tolist()
    want = [
        len({t for t in instants(a) if low <= t < high}) for low, high in itertools.pairwise(edges)
    ]
    assert counts == want
