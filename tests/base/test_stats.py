"""Confidence intervals have their nominal coverage, and slopes recover an injected trend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.base import stats

some = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


def test_t_interval_equals_that_of_scipy() -> None:
    from scipy import stats as reference

    values = [0.91, 0.95, 0.93, 0.97, 0.9]
    low, high = reference.t.interval(0.95, 4, np.mean(values), reference.sem(values))
    interval = stats.t_interval(values, 0.05)
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_t_interval_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for values in rng.normal(0.3, 0.02, (4000, 8)):
        interval = stats.t_interval(values.tolist(), 0.05)
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= 0.3 <= interval.high
    assert covered / 4000 == pytest.approx(0.95, abs=0.012)


@given(some)
def test_an_interval_contains_its_mean(values: list[float]) -> None:
    interval = stats.t_interval(values, 0.05)
    assert interval.low is not None and interval.high is not None
    assert interval.low <= interval.mean <= interval.high
    assert interval.mean == pytest.approx(np.mean(values), abs=1e-9)


@given(some, st.floats(0, 1))
def test_quantile_equals_that_of_numpy(values: list[float], q: float) -> None:
    assert stats.quantile(values, q) == pytest.approx(np.quantile(values, q), abs=1e-9)


def test_slope_detects_an_injected_leak_and_not_noise() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 2000, 40)
    leak = stats.slope((noise + 5000 * np.arange(40)).tolist())
    flat = stats.slope(noise.tolist())
    assert leak.low is not None and leak.low > 4000
    assert flat.low is not None and flat.high is not None and flat.low < 0 < flat.high


def test_one_value_has_no_interval_and_no_values_raise() -> None:
    assert stats.t_interval([0.9], 0.05).low is None
    with pytest.raises(ValueError, match="at least one value"):
        stats.t_interval([], 0.05)


def test_karp_flatt_recovers_the_serial_fraction_of_amdahls_law() -> None:
    """The metric recovers the serial fraction 0.1 from speedups that follow Amdahl's law."""
    for n in (2, 4, 8):
        speedup = 1 / (0.1 + 0.9 / n)
        assert stats.karp_flatt(speedup, n) == pytest.approx(0.1)
    assert stats.karp_flatt(1.0, 1) is None
