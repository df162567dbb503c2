"""The standard of evidence, compared with binomial arithmetic and with series that are written out."""

from __future__ import annotations

from math import comb
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from harness.analysis.judging import judge


@pytest.mark.parametrize("n", [4, 6, 8, 16, 64])
def test_the_unseen_share_is_missed_with_probability_one_in_twenty(n: int) -> None:
    """A share of slow launches is not ruled out if n pairs miss it with a probability above 1/20."""
    share = judge.unseen_share(n)
    none_seen = [comb(n, 0) * (1 - p) ** n for p in (0.99 * share, share, 1.01 * share)]
    assert none_seen[0] > 0.05 > none_seen[2]
    assert none_seen[1] == pytest.approx(0.05)


def test_the_allowance_never_grows_with_more_pairs() -> None:
    asked = [judge.kept_by_standard(n) for n in range(1, 200)]
    assert asked == sorted(asked, reverse=True) and asked[-1] > 0


@pytest.mark.parametrize(("n", "hidden"), [(4, True), (5, False), (6, False)])
def test_a_slower_half_is_allowed_for_while_chance_can_hide_it(n: int, hidden: bool) -> None:
    """All of n fair coins show heads with probability 1 / 2^n: one in sixteen, or one in
    thirty-two.
    """
    assert (1 / 2**n > 1 / 20) is hidden
    mean_loss = judge.HALF_SLOWER / 2
    assert (judge.kept_by_standard(n) >= mean_loss) is hidden


def test_the_rounding_allowance_is_at_most_that_of_all_slow_launches() -> None:
    most = judge.UNSEEN_SHARE * judge.UNSEEN_SLOWDOWN
    assert all(judge.rounding_allowance(n) <= most for n in range(1, 100))


@given(st.floats(0.5, 1.5), st.floats(1e-4, 5e-3), st.integers(4, 12), st.integers(0, 30))
def test_the_trend_loss_equals_that_of_a_continued_line(
    first: float, fall: float, n: int, more: int
) -> None:
    """Compare with a straight line that is written out to its horizon."""
    whole = [first - fall * i for i in range(n + more)]
    loss = judge.trend_loss(whole[:n], n + more)
    assert loss == pytest.approx(fmean(whole[:n]) - fmean(whole), abs=1e-9)


@pytest.mark.parametrize(
    "values", [[1.0, 1.0, 1.0, 1.0], [0.9, 0.95, 1.0, 1.05], [1.0, 0.9], [1.0, 1.1, 0.99, 1.1]]
)
def test_a_series_that_does_not_fall_has_no_trend_loss(values: list[float]) -> None:
    assert judge.trend_loss(values, 100) == 0.0
