"""The search finds the largest micro-batch that fits in memory and starts few worlds for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from harness.analysis.choices.batches import CLOSE, Attempt, Search, grown


def found(search: Search, largest: int) -> tuple[int, int]:
    """Return the search's result if all micro-batches up to ``largest`` fit, and the number of
    worlds it tried.
    """
    tried: list[Attempt] = []
    while (micro := search.next(tried)) is not None:
        assert micro % search.unit == 0 and micro not in {t.micro for t in tried}
        assert search.most is None or micro <= search.most
        tried.append(
            Attempt(micro=micro, peak_bytes=1.0, why="" if micro <= largest else "too large")
        )
        assert len(tried) < 100
    return max((t.micro for t in tried if t.fits), default=0), len(tried)


@given(st.integers(1, 5000), st.integers(0, 100_000), st.sampled_from([1, 2, 4, 6]))
def test_the_largest_micro_batch_that_fits_is_found(start: int, largest: int, unit: int) -> None:
    best, worlds = found(Search(start, unit), largest)
    assert best <= largest
    if largest >= unit:
        assert best + max(unit, best * CLOSE) + unit > largest
    assert worlds <= 2 * math.log2(max(2, start, largest)) + 8


@given(st.integers(1, 500), st.integers(1, 500))
def test_no_micro_batch_above_the_limit_is_tried(start: int, most: int) -> None:
    assert found(Search(start, 1, most), 10**9)[0] == most


def test_peak_memory_is_fitted_by_a_line() -> None:
    tried = [Attempt(micro=m, peak_bytes=100.0 + 7 * m) for m in (1, 2, 8)]
    line = grown([*tried, Attempt(micro=16, peak_bytes=None, why="out of memory")])
    assert line is not None and (line.fixed, line.per_sample) == pytest.approx((100, 7))
    assert grown(tried[:1]) is None
