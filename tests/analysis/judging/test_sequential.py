"""Confidence sequences, e-values and e-BH: their algebra is tested here, their error rates in
benchmarks/experiments.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.analysis.judging import judge

VALUES = st.lists(st.floats(-1, 1), min_size=6, max_size=40)


@given(VALUES)
def test_the_interval_contains_its_mean_and_shrinks_with_the_level(values: list[float]) -> None:
    wide, narrow = judge.t_sequence(values, 0.05), judge.t_sequence(values, 0.2)
    assert wide.low is not None and narrow.low is not None
    assert wide.low <= narrow.low <= narrow.mean + 1e-12


@given(VALUES, st.floats(0.02, 0.3))
def test_evidence_is_the_dual_of_the_interval(values: list[float], alpha: float) -> None:
    """The lower end of the interval is the bound for which the evidence is exactly 1 / alpha."""
    interval = judge.t_sequence(values, alpha)
    if interval.low is None or not interval.sd or interval.sd < 1e-6:
        return
    assert judge.t_evidence(values, interval.low) == pytest.approx(1 / alpha, rel=1e-6)


def test_evidence_has_mean_one_at_most_under_the_null() -> None:
    rng = np.random.default_rng(5)
    e_values = [judge.t_evidence(v.tolist(), 0.0) for v in rng.normal(0, 1, (20_000, 8))]
    assert np.mean(e_values) < 1.05


def test_the_smallest_detectable_effect_is_detected_with_power_0_9() -> None:
    n, sd, alpha = 12, 0.013, 0.1
    effect = math.log1p(judge.smallest_detectable(sd, n, alpha) or 0)
    rng = np.random.default_rng(3)
    lows = [judge.t_sequence(v.tolist(), alpha).low for v in rng.normal(effect, sd, (4000, n))]
    assert sum(low is not None and low > 0 for low in lows) / 4000 == pytest.approx(0.9, abs=0.04)


@given(st.lists(st.floats(0, 1e6), max_size=40), st.floats(0.01, 0.2))
def test_discoveries_are_the_largest_values_and_satisfy_the_ebh_condition(
    values_listed: list[float], rate: float
) -> None:
    kept = judge.discoveries(values_listed, rate)
    m = len(values_listed)
    assert all(values_listed[i] * len(kept) * rate >= m * (1 - 1e-9) for i in kept)
    rest = [values_listed[i] for i in range(m) if i not in kept]
    assert not kept or max(rest, default=0.0) <= min(values_listed[i] for i in kept)


def test_discoveries_equal_a_calculation_by_hand() -> None:
    assert judge.discoveries([100.0, 30.0, 21.0, 1.0], 0.05) == frozenset({0})
    assert judge.discoveries([100.0, 41.0, 27.0, 1.0], 0.05) == frozenset({0, 1, 2})
    assert judge.discoveries([], 0.05) == frozenset()


def test_too_few_values_have_no_interval() -> None:
    assert judge.t_sequence([1.0], 0.1).low is None
    assert judge.t_sequence([1.0, 1.1], 0.1).low is None
    with pytest.raises(ValueError, match="at least one value"):
        judge.t_sequence([], 0.1)
