"""Nested ranges of a thread, compared with a program that inspects every nanosecond."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from harness.analysis.timeline.lanes import innermost, levels, self_ns

Range = tuple[int, int]


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 60, depth: int = 3) -> list[Range]:
    """Draw ranges of one thread between two instants, each followed by the ranges inside it."""
    out: list[Range] = []
    at = low
    while at < high and draw(st.booleans()):
        start = draw(st.integers(at, high - 1))
        end = draw(st.integers(start + 1, high))
        out.append((start, end))
        if depth and end - start > 2:
            out += draw(nested(start + 1, end - 1, depth - 1))
        at = end
    return out


def traced(*threads: list[Range]) -> Any:
    """Return rows in the reader's order: by start, the longer one first."""
    rows = [(s, e, t) for t, ranges in enumerate(threads) for s, e in ranges]
    rows.sort(key=lambda row: (row[0], -row[1]))
    start, end, thread = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return SimpleNamespace(start=start, end=end, thread=thread)


def open_at(trace: Any, thread: int, instant: int) -> list[int]:
    """Return the rows that are open at an instant, the innermost last."""
    rows = range(len(trace.start))
    return [
        i for i in rows if trace.thread[i] == thread and trace.start[i] <= instant < trace.end[i]
    ]


@given(nested(), nested())
@settings(max_examples=40)
def test_self_time_is_the_time_without_an_inner_range(a: list[Range], b: list[Range]) -> None:
    trace = traced(a, b)
    counted = np.zeros(len(trace.start), dtype=np.int64)
    for thread in (0, 1):
        for instant in range(60):
            if inside := open_at(trace, thread, instant):
                counted[inside[-1]] += 1
    everything = np.ones(len(trace.start), dtype=bool)
    assert self_ns(trace, everything).tolist() == counted.tolist()


@given(nested(), st.lists(st.integers(-1, 61), max_size=8))
def test_an_instant_belongs_to_the_innermost_range(
    ranges: list[Range], instants: list[int]
) -> None:
    trace = traced(ranges)
    rows = np.arange(len(trace.start))
    places = innermost(trace, rows, 0, np.array(instants, dtype=np.int64))
    assert places.tolist() == [(open_at(trace, 0, i) or [-1])[-1] for i in instants]


@given(nested())
@settings(max_examples=40)
def test_levels_contain_every_range_and_are_disjoint(ranges: list[Range]) -> None:
    trace = traced(ranges)
    by_depth = [rows.tolist() for rows in levels(trace, np.arange(len(trace.start)))]
    assert sorted(row for rows in by_depth for row in rows) == list(range(len(ranges)))
    for rows in by_depth:
        assert all(trace.end[i] <= trace.start[j] for i, j in itertools.pairwise(rows))
