"""Shares of the ranks' gradients in a compressor's output, by least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from harness.training.rank import invariants
from harness.training.rank.invariants import (
    BLOCK,
    LEAST_SHARE,
    LEAST_WIDTH,
    CodecShares,
    GradientSums,
)

NUM_ELEMENTS = 4_000


class Gathered(CodecShares):
    """The shares of all ranks in one process; a rank's gradient is the same in every step."""

    def __init__(self, gradients: Tensor) -> None:
        context: Any = SimpleNamespace(world_size=len(gradients), device=torch.device("cpu"))
        super().__init__(context)
        self.gradients = gradients

    def _gathered(self, sums: GradientSums) -> tuple[Tensor, Tensor]:
        def gathered(every: list[Tensor], _: Tensor) -> None:
            for out, gradient in zip(every, self.gradients, strict=True):
                out.copy_(sums.steps * gradient)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(invariants.dist, "all_gather", gathered)
            return super()._gathered(sums)


def steps_of(gradients: Tensor, made: Sequence[Tensor]) -> CodecShares:
    """Return the shares of steps with the same ``gradients`` of shape (ranks, elements)."""
    looked_at = Gathered(gradients)
    for step in made:
        looked_at.add([gradients[0]], [step])
    return looked_at


def fitted(gradients: Tensor, made: Tensor) -> CodecShares:
    """Return the shares of a block of identical steps."""
    return steps_of(gradients, [made] * BLOCK)


def drawn(ranks: int, seed: int, num: int = NUM_ELEMENTS) -> Tensor:
    """Return correlated gradients."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(num, generator=generator)
    return common + torch.randn(ranks, num, generator=generator)


@settings(max_examples=30, deadline=None)
@given(weights=st.lists(st.floats(0.5, 1.5), min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_shares_are_the_weights_of_the_ranks(weights: list[float], seed: int) -> None:
    gradients = drawn(len(weights), seed)
    made = (torch.tensor(weights)[:, None] * gradients).mean(0)
    (fit,) = fitted(gradients, made).blocks
    assert fit.shares == pytest.approx(weights, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(2, 6), noise=st.floats(0, 3), seed=st.integers(0, 1000))
def test_noise_is_not_mistaken_for_an_omitted_rank(ranks: int, noise: float, seed: int) -> None:
    gradients = drawn(ranks, seed)
    mean = gradients.mean(0)
    made = mean + noise * torch.randn(
        NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed + 1)
    )
    assert fitted(gradients, made).check().ok


@settings(max_examples=30, deadline=None)
@given(
    ranks=st.integers(2, 6),
    kept=st.floats(0.01, 1),
    alike=st.floats(0, 4),
    seed=st.integers(0, 1000),
)
def test_error_feedback_is_not_mistaken_for_an_omitted_rank(
    ranks: int, kept: float, alike: float, seed: int
) -> None:
    """Only the largest elements are sent, for gradients of ranks with any similarity."""
    gradients = drawn(ranks, seed) + alike * drawn(1, seed + 1)
    mean = gradients.mean(0)
    least = mean.abs().topk(int(kept * NUM_ELEMENTS)).values[-1]
    assert fitted(gradients, mean * (mean.abs() >= least)).check().ok


@pytest.mark.parametrize(
    ("weights", "ok"),
    [
        ([1.0, 1.0, 1.0], True),
        ([0.0, 0.0, 0.0], False),
        ([-1.0, -1.0, -1.0], False),
        ([3.0, 0.0, 0.0], False),
        ([1.5, 1.5, 0.0], False),
        ([1.5, 1.2, LEAST_SHARE / 2], False),
    ],
)
def test_omitted_ranks_are_reported(weights: list[float], ok: bool) -> None:
    gradients = drawn(3, 1)
    made = (torch.tensor(weights)[:, None] * gradients).mean(0)
    assert fitted(gradients, made).check().ok is ok


def test_using_one_rank_for_some_parameters_and_another_for_the_rest_is_no_mean() -> None:
    """Over all parameters every rank has an even share, but not for parts of them."""
    gradients = drawn(2, 1, LEAST_WIDTH)
    first, second = gradients.chunk(2, 1)
    check = fitted(gradients, torch.cat([first[0], second[1]])).check()
    assert not check.ok and "in part" in check.detail
    mean = gradients.mean(0)
    for kept in (0.01, 0.1):
        least = mean.abs().topk(int(kept * LEAST_WIDTH)).values[-1]
        assert fitted(gradients, mean * (mean.abs() >= least)).check().ok


def test_ranks_without_samples_and_nan_are_not_blamed_on_the_codec() -> None:
    gradients = drawn(3, 1)
    gradients[2] = 0.0
    assert fitted(gradients, gradients.mean(0)).check().ok
    gradients[1, 0] = math.nan
    assert fitted(gradients, gradients.mean(0)).check().ok


@pytest.mark.parametrize(
    ("handed_on", "ok"),
    [
        ("1" * 16, True),
        ("0" * 7, True),  # too short to tell
        ("0" * 16, False),
        ("1" * 16 + "0" * 7, True),
        ("1" * 16 + "0" * 8, False),
        ("00001" * 4 + "0" * 8, True),
        ("00001" * 4 + "0" * 11, False),
        ("0" * 20 + "1" + "0" * 20, True),
    ],
)
def test_a_codec_is_silent_for_good_after_twice_its_longest_silence(
    handed_on: str, ok: bool
) -> None:
    gradients = drawn(2, 1)
    looked_at = steps_of(gradients, [int(step) * gradients.mean(0) for step in handed_on])
    check = looked_at.check()
    assert check.ok is ok
    assert ok or check.detail.startswith("the compressor's output was zero in the last ")


def test_a_lossy_codec_of_one_rank_is_seen_over_all_steps() -> None:
    """The outstanding part hides it within one block, but not over many blocks."""
    owed = torch.zeros(NUM_ELEMENTS)
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(2, NUM_ELEMENTS, generator=generator)
    made = []
    for _ in range(40 * BLOCK):
        owed += gradients[0]
        kept = owed * (owed.abs() >= owed.abs().topk(NUM_ELEMENTS // 20).values[-1])
        owed -= kept
        made.append(kept)
    looked_at = steps_of(gradients, made)
    check = looked_at.check()
    assert not check.ok and "rank 1's gradients" in check.detail and "all 320" in check.detail
    assert math.inf not in looked_at.blocks[0].errors


def test_a_large_gradient_is_folded_into_random_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums with random signs preserve inner products, up to noise."""
    monkeypatch.setattr(invariants, "WIDTH", 512)
    gradients = drawn(3, 1)
    context: Any = SimpleNamespace(world_size=3, device=torch.device("cpu"))
    folded = torch.stack([CodecShares(context)._folded([g]) for g in gradients])
    assert folded.shape == (3, 512)
    wanted, seen = gradients @ gradients.T, folded @ folded.T
    assert float((seen - wanted).norm() / wanted.norm()) < 0.25
