"""The critical batch against curves that were planted, and against a simulated training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.choices.batches import critical_batch


def needed(batch: float, critical: float, least: float) -> float:
    """McCandlish et al. (2018): (S / S_min - 1) (E / E_min - 1) = 1, solved for E = B S."""
    fewest_steps = least / critical
    low, high = least, least * (1 + 10 * batch / critical) * 10
    for _ in range(200):  # bisection: the product falls as E grows
        middle = (low + high) / 2
        product = (middle / batch / fewest_steps - 1) * (middle / least - 1)
        low, high = (middle, high) if product < 1 else (low, middle)
    return low


@pytest.mark.parametrize("critical", [20.0, 100.0, 1000.0])
def test_a_planted_batch_comes_back(critical: float) -> None:
    batches = (8, 32, 128, 512)
    fitted = critical_batch({b: [needed(b, critical, 5000.0)] for b in batches})
    assert fitted is not None
    assert fitted.batch == pytest.approx(critical, rel=1e-6)
    assert fitted.least_samples == pytest.approx(5000.0, rel=1e-6)
    assert fitted.low <= fitted.batch <= fitted.high


def test_noise_widens_the_interval_and_keeps_the_truth_inside_mostly() -> None:
    source = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        samples = {
            b: [needed(b, 100.0, 5000.0) * f for f in source.normal(1, 0.05, 4)]
            for b in (8, 32, 128, 512)
        }
        fitted = critical_batch(samples)
        assert fitted is not None and fitted.low < fitted.high
        inside += fitted.low <= 100.0 <= fitted.high
    assert inside >= 80


def test_a_noisy_quadratic_shows_the_batch_of_its_noise() -> None:
    """SGD on |w|^2 / 2 with gradient noise of variance s^2 an element and sample, at the best rate.

    The noise scale of the paper (equation 2.9) is tr(Sigma) / |G|^2; a step of the best size takes
    the loss down by the factor 1 - 1 / (1 + B_noise / B).
    """
    noise = 50.0
    samples = {}
    for batch in (5, 20, 80, 320):
        loss, steps = 1.0, 0.0
        while loss > 0.5:
            loss *= 1 - 0.01 / (1 + noise / batch)  # small steps: the noise scale stays
            steps += 1
        samples[batch] = [steps * batch]
    fitted = critical_batch(samples)
    assert fitted is not None
    assert fitted.batch == pytest.approx(noise, rel=0.1)


def test_two_batches_say_nothing_and_flat_ones_have_no_end() -> None:
    assert critical_batch({8: [10.0], 16: [12.0]}) is None
    flat = critical_batch({8: [100.0], 16: [100.0], 32: [100.0]})
    assert (flat is not None and flat.batch > 1e6) or (flat is not None and math.isinf(flat.batch))
