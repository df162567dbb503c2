"""The gradient-noise scale is recovered from gradients with a known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.choices.batches import noise_scale

ELEMENTS, RANKS, PARTS, STEPS = 400, 4, 16, 40


def squares(noise: float, small: int, seed: int) -> list[list[tuple[float, float]]]:
    """Return squared norms of gradients with |G|^2 = 1 whose samples have a total variance
    tr(Sigma) = ``noise``.
    """
    source = np.random.default_rng(seed)
    gradient = np.full(ELEMENTS, ELEMENTS**-0.5)
    spread = math.sqrt(noise / ELEMENTS / small)
    gradients = gradient + source.normal(0, spread, (PARTS, STEPS, RANKS, ELEMENTS))
    of_rank = (gradients**2).sum(-1).mean(1)
    of_mean = (gradients.mean(2) ** 2).sum(-1).mean(1)
    return [[(of_rank[p, r], of_mean[p]) for p in range(PARTS)] for r in range(RANKS)]


@pytest.mark.parametrize("noise", [3.0, 30.0, 300.0])
def test_a_known_noise_scale_is_recovered(noise: float) -> None:
    inside = 0
    for seed in range(10):
        scale = noise_scale(squares(noise, 8, seed), 8, 8 * RANKS)
        assert scale is not None
        assert scale.batch == pytest.approx(noise, rel=0.25)
        inside += scale.low <= noise <= scale.high
    assert inside >= 8


def test_gradients_of_pure_noise_have_an_unbounded_scale() -> None:
    scale = noise_scale(squares(1e7, 1, 0), 1, RANKS)
    assert scale is not None and math.isinf(scale.high)


def test_without_squared_norms_there_is_no_estimate() -> None:
    assert noise_scale([], 8, 32) is None
    assert noise_scale([(), ()], 8, 16) is None
