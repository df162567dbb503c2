"""The judge errs no more often than it says. Short sets here; ``-m full`` runs 20,000 a cell."""

from __future__ import annotations

import pytest
import rates


@pytest.mark.parametrize(
    ("runs", "limit"),
    [(2_000, 0.045), pytest.param(20_000, 0.035, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("looks", [rates.BLOCKS, rates.EVERY], ids=["as shipped", "every pair"])
def test_on_the_bound_it_hardly_ever_decides(runs: int, limit: float, looks: range) -> None:
    """An A/A comparison is this case too: the truth lies on the bound."""
    found = rates.simulate(rates.BOUND, rates.normal, looks, runs)
    assert found.upper(found.passed) <= limit and found.upper(found.failed) <= limit
    assert found.confirmed <= found.failed


@pytest.mark.parametrize(
    ("true", "passed", "failed", "pairs"),
    [(0.80, 0.0, 1.0, 8.5), (0.83, 0.0, 0.99, 9.0), (0.87, 0.95, 0.0, 10.0)],
)
def test_two_points_off_it_decides_within_eight_blocks(
    true: float, passed: float, failed: float, pairs: float
) -> None:
    found = rates.simulate(true, rates.normal, rates.BLOCKS, 400)
    assert found.passed >= passed and found.failed >= failed and found.pairs <= pairs
    assert min(found.passed, found.failed) == 0.0, "never the wrong way"


@pytest.mark.full
@pytest.mark.parametrize(
    ("true", "share", "pairs"),
    [(0.80, 1.0, 4.9), (0.83, 1.0, 6.7), (0.84, 0.98, 13.4), (0.86, 0.89, 21.5), (0.87, 1.0, 9.2)],
)
def test_power_is_that_of_the_published_rule(true: float, share: float, pairs: float) -> None:
    found = rates.simulate(true, rates.normal, rates.EVERY, 4_000)
    assert max(found.passed, found.failed) >= share - 0.01 and found.pairs <= pairs


@pytest.mark.parametrize(
    ("noise", "limit"),
    [("t, 3 degrees", 0.03), ("bimodal", 0.15), ("skewed", 0.12), ("AR(1) 0.4", 0.13)],
)
def test_other_noise_errs_as_often_as_the_docs_say(noise: str, limit: float) -> None:
    found = rates.simulate(rates.BOUND, rates.NOISES[noise], rates.BLOCKS, 500)
    assert found.passed <= limit and found.failed <= limit


def test_looking_often_with_a_fixed_interval_would_err() -> None:
    """The mutant: Student's t at every look, which is what one would write first."""
    import numpy as np

    from harness.base.stats import t_interval

    rng, wrong, runs = np.random.default_rng(3), 0, 400
    for _ in range(runs):
        values = rng.normal(0, rates.SD, 40).tolist()
        lows = (t_interval(values[:n], 0.1).low for n in rates.EVERY)
        wrong += any(low is not None and low > 0 for low in lows)
    assert wrong / runs > 0.12
