"""Shares of the ranks' gradients in what a codec makes: least squares, whatever the codec says."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from harness.training.rank import shares
from harness.training.rank.shares import BLOCK, LEAST, Shares

NUM_ELEMENTS = 4_000


def fitted(gradients: Tensor, made: Tensor) -> Shares:
    """Shares of a block of equal steps; ``gradients`` (ranks, elements)."""
    context: Any = SimpleNamespace(world_size=len(gradients), device=torch.device("cpu"))
    looked_at = Shares(context)

    def gathered(every: list[Tensor], _: Tensor) -> None:
        for out, gradient in zip(every, gradients, strict=True):
            out.copy_(BLOCK * gradient)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shares.dist, "all_gather", gathered)
        for _ in range(BLOCK):
            looked_at.add([gradients[0]], [made])
    return looked_at


def drawn(ranks: int, seed: int) -> Tensor:
    """Gradients that have something in common."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(NUM_ELEMENTS, generator=generator)
    return common + torch.randn(ranks, NUM_ELEMENTS, generator=generator)


@settings(max_examples=30, deadline=None)
@given(weights=st.lists(st.floats(0.5, 1.5), min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_shares_are_the_weights_of_the_ranks(weights: list[float], seed: int) -> None:
    gradients = drawn(len(weights), seed)
    made = (torch.tensor(weights)[:, None] * gradients).mean(0)
    (fit,) = fitted(gradients, made).blocks
    assert fit.shares == pytest.approx(weights, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(2, 6), noise=st.floats(0, 3), seed=st.integers(0, 1000))
def test_noise_of_any_size_is_no_rank_that_is_left_out(ranks: int, noise: float, seed: int) -> None:
    gradients = drawn(ranks, seed)
    mean = gradients.mean(0)
    made = mean + noise * torch.randn(
        NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed + 1)
    )
    assert fitted(gradients, made).check().ok


@pytest.mark.parametrize(
    ("weights", "ok"),
    [
        ([1.0, 1.0, 1.0], True),
        ([0.0, 0.0, 0.0], False),
        ([-1.0, -1.0, -1.0], False),
        ([3.0, 0.0, 0.0], False),
        ([1.5, 1.5, 0.0], False),
        ([1.5, 1.2, LEAST / 2], False),
    ],
)
def test_what_is_left_out_is_told(weights: list[float], ok: bool) -> None:
    gradients = drawn(3, 1)
    made = (torch.tensor(weights)[:, None] * gradients).mean(0)
    assert fitted(gradients, made).check().ok is ok


def test_a_rank_without_samples_and_losses_that_are_not_finite_are_no_codecs_fault() -> None:
    gradients = drawn(3, 1)
    gradients[2] = 0.0
    assert fitted(gradients, gradients.mean(0)).check().ok
    gradients[1, 0] = math.nan
    assert fitted(gradients, gradients.mean(0)).check().ok


def test_a_large_gradient_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into sums with signs: their inner products are those of the whole, with some noise."""
    monkeypatch.setattr(shares, "WIDTH", 512)
    gradients = drawn(3, 1)
    context: Any = SimpleNamespace(world_size=3, device=torch.device("cpu"))
    folded = torch.stack([Shares(context)._folded([g]) for g in gradients])
    assert folded.shape == (3, 512)
    wanted, seen = gradients @ gradients.T, folded @ folded.T
    assert float((seen - wanted).norm() / wanted.norm()) < 0.25
