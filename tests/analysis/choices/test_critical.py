"""The critical batch is recovered from curves with a known answer and from a simulated training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.choices.batches import critical_batch


def needed(batch: float, critical: float, least: float) -> float:
    """Return the samples needed at a batch size, after McCandlish et al. (2018): (S / S_min - 1) (E
    / E_min - 1) = 1, solved for E = B S.
    """
    fewest_steps = least / critical
    low, high = least, least * (1 + 10 * batch / critical) * 10
    for _ in range(200):  # Bisection works because the product falls as E grows.
        middle = (low + high) / 2
        product = (middle / batch / fewest_steps - 1) * (middle / least - 1)
        low, high = (middle, high) if product < 1 else (low, middle)
    return low


@pytest.mark.parametrize("critical", [20.0, 100.0, 1000.0])
def test_a_known_critical_batch_is_recovered(critical: float) -> None:
    batches = (8, 32, 128, 512)
    fitted = critical_batch({b: [needed(b, critical, 5000.0)] for b in batches})
    assert fitted is not None
    assert fitted.batch == pytest.approx(critical, rel=1e-6)
    assert fitted.least_samples == pytest.approx(5000.0, rel=1e-6)
    assert fitted.low <= fitted.batch <= fitted.high


def test_with_noise_the_interval_usually_contains_the_true_value() -> None:
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


def test_sgd_on_a_noisy_quadratic_has_the_noise_scale_as_critical_batch() -> None:
    """Train SGD on |w|^2 / 2 with the best learning rate; the gradient noise of a sample has
    variance s^2 in each element.

    The noise scale of the paper (equation 2.9) is tr(Sigma) / |G|^2. A step of the best size
    multiplies the loss by 1 - 1 / (1 + B_noise / B).
    """
    noise = 50.0
    samples = {}
    for batch in (5, 20, 80, 320):
        loss, steps = 1.0, 0.0
        while loss > 0.5:
            loss *= 1 - 0.01 / (1 + noise / batch)  # Small steps keep the noise scale constant.
            steps += 1
        samples[batch] = [steps * batch]
    fitted = critical_batch(samples)
    assert fitted is not None
    assert fitted.batch == pytest.approx(noise, rel=0.1)


def test_two_batches_give_no_estimate_and_flat_curves_give_no_upper_limit() -> None:
    assert critical_batch({8: [10.0], 16: [12.0]}) is None
    flat = critical_batch({8: [100.0], 16: [100.0], 32: [100.0]})
    assert (flat is not None and flat.batch > 1e6) or (flat is not None and math.isinf(flat.batch))
