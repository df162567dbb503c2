"""The rank scan for level shifts: what it finds, when it finds nothing, and the algebra of both."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.features.history import scan

VALUES = st.lists(st.floats(-5, 5), min_size=12, max_size=40)


@pytest.mark.parametrize(("kind", "found_at_least"), [("none", 0.0), ("step", 0.86)])
def test_the_scan_finds_steps_and_few_false_changes_in_independent_noise(
    kind: str, found_at_least: float
) -> None:
    random = np.random.default_rng(5)
    nights = random.normal(0, 0.02, (500, 60))
    nights[:, 40:] += math.log(1.03) * (kind == "step")
    changes = [scan.changes(x, 0.01) for x in nights]
    named = [c for c in changes if c]
    if kind == "none":
        assert len(named) <= 0.01 * len(nights)
        return
    assert len(named) >= found_at_least * len(nights)
    near = [c for c in named if any(abs(x.at - 40) <= 2 and x.size.by > 0 for x in c)]
    assert len(near) >= 0.78 * len(named)
    held = [c[0].size.low <= math.log(1.03) <= c[0].size.high for c in near if len(c) == 1]
    # Changes are selected for their size, so coverage is a little below 0.95.
    assert 0.75 <= np.mean(held) <= 0.99


def test_false_changes_are_equally_likely_in_both_directions() -> None:
    nights = np.random.default_rng(8).normal(0, 0.02, (700, 40))
    upwards = [c.size.by > 0 for x in nights for c in scan.changes(x, 0.01, alpha=0.1)]
    assert len(upwards) > 30 and 0.35 <= np.mean(upwards) <= 0.65


def test_outliers_neither_hide_nor_create_a_step() -> None:
    random = np.random.default_rng(6)
    nights = random.normal(0, 0.005, (200, 60))
    nights += np.where(random.random(nights.shape) < 0.05, 0.15, 0.0)
    assert sum(bool(scan.changes(x, 0.01)) for x in nights) <= 4
    nights[:, 40:] += 0.02
    assert sum(bool(scan.changes(x, 0.01)) for x in nights) >= 190


def test_every_level_shift_is_found_and_dated() -> None:
    random = np.random.default_rng(7)
    levels = np.repeat([0.0, 0.05, 0.0, -0.03], [20, 15, 15, 20])
    changes = scan.changes(levels + random.normal(0, 0.004, 70), 0.01)
    assert [c.at for c in changes] == [20, 35, 50]
    assert [round(c.size.by, 2) for c in changes] == [0.05, -0.05, -0.03]


def test_a_shift_of_a_figure_without_noise_is_found_exactly() -> None:
    (change,) = scan.changes([100.0] * 20 + [101.0] * 3, 0.001)
    assert (change.at, change.p, change.size.by) == (20, 0.0, 1.0)
    assert not scan.changes([100.0] * 30, 0.001)


def test_a_change_below_the_minimum_size_is_ignored() -> None:
    values = [0.0, 0.001] * 10 + [0.02, 0.021] * 10
    assert scan.changes(values, 0.01) and not scan.changes(values, 0.03)


@given(VALUES)
def test_the_score_depends_only_on_the_order_of_values(values: list[float]) -> None:
    x = np.array(values)
    assert scan.best(x) == pytest.approx(scan.best(2 * x))  # Scaling by a power of two is exact.


@given(VALUES, st.floats(-3, 3))
def test_the_size_of_a_shift_follows_the_level(values: list[float], by: float) -> None:
    before, after = np.array(values[:6]), np.array(values[6:])
    size, moved = scan.shift(before, after), scan.shift(before, after + by)
    assert moved.by == pytest.approx(size.by + by, abs=1e-9)
    assert size.low <= size.by <= size.high


def test_p_values_equal_the_simulated_null_distribution() -> None:
    scores = scan.highest(30, 20_000, np.random.default_rng(3))
    for p in (0.1, 0.01):
        share = np.mean([scan.p_value(float(s), 30) <= p for s in scores])
        assert share == pytest.approx(p, rel=0.25)
    assert scan.p_value(9.0, 60) < 1e-8 < scan.p_value(4.5, 60) < 1e-4, (
        "p-values must keep falling beyond the table"
    )
    assert [scan.p_value(s, 17) for s in (1.5, 2.5, 3.0)] == sorted(
        [scan.p_value(s, 17) for s in (1.5, 2.5, 3.0)], reverse=True
    )


@pytest.mark.parametrize(
    ("last", "leapt"), [(0.0, False), (0.05, False), (0.2, True), (-0.2, True)]
)
def test_an_outlier_asks_for_another_nightly_run(last: float, leapt: bool) -> None:
    usual = [0.001 * (-1) ** i for i in range(14)]
    assert scan.leap([*usual, last], 0.1) is leapt
    assert not scan.leap([0.1 * (-1) ** i for i in range(14)] + [last], 0.1), (
        "the value is within the usual noise"
    )


def test_dependence_between_nightly_runs_is_accounted_for() -> None:
    """For AR(1) noise with 0.6 and 1 %, a test that assumes independence is wrong in a quarter of
    the series.
    """
    random = np.random.default_rng(11)
    false = detected = 0
    for _ in range(60):
        x = random.normal(0, 0.01, 60)
        for i in range(1, 60):
            x[i] = 0.6 * x[i - 1] + 0.8 * x[i]
        false += any(c.certain for c in scan.changes(x, 0.01))
        x[35:] += math.log(1.03)
        detected += any(c.certain and c.size.by > 0 for c in scan.changes(x, 0.01))
    assert false <= 3 and detected >= 32, (false, detected)


def test_a_drift_has_no_date() -> None:
    random = np.random.default_rng(12)
    series = [np.linspace(0, 0.05, 60) + random.normal(0, 0.01, 60) for _ in range(20)]
    assert not any(c.certain for x in series for c in scan.changes(x, 0.01)[-1:])
    drifts = [scan.drift(x, 0.01) for x in series]
    assert all(by is not None and 0.035 < by < 0.065 for by in drifts)
    assert scan.drift(random.normal(0, 0.01, 60), 0.01) is None
    assert scan.drift(np.repeat([0.0, 0.05], 30) + random.normal(0, 0.01, 60), 0.01) is None


def test_a_temporary_level_is_found_with_both_ends() -> None:
    random = np.random.default_rng(13)
    kept = 0
    for _ in range(20):
        x = random.normal(0, 0.01, 60)
        x[25:35] += 0.04
        nights = [c.at for c in scan.changes(x, 0.01)]
        kept += any(abs(n - 25) <= 2 for n in nights) and any(abs(n - 35) <= 2 for n in nights)
    assert kept >= 14


def test_differences_between_nodes_are_not_changes() -> None:
    random = np.random.default_rng(14)
    nodes = ["a"] * 14 + ["b"] * 12 + ["a"] * 10 + ["c"] * 12 + ["b"] * 12
    slower = {"a": -0.01, "b": 0.0, "c": 0.015}
    x = np.array([slower[n] for n in nodes]) + random.normal(0, 0.005, 60)
    assert not scan.changes(x, 0.01, nodes=nodes)
    x[30:] += 0.03
    (change,) = scan.changes(x, 0.01, nodes=nodes)
    assert abs(change.at - 30) <= 2 and change.size.by == pytest.approx(0.03, abs=0.006)


def test_levels_are_separated_by_a_minimum_number_of_runs() -> None:
    """In random walks, detected steps tend to be close together."""
    random = np.random.default_rng(15)
    for _ in range(20):
        x = np.cumsum(random.normal(0, 0.006, 60)) + random.normal(0, 0.002, 60)
        nights = [0, *(c.at for c in scan.changes(x, 0.001, alpha=0.05)), 60]
        assert all(b - a >= scan.FEWEST_NIGHTS for a, b in itertools.pairwise(nights))
