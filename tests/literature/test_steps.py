"""Optimizers as their papers define them, in numpy and float64, without code of the harness.

Each reference steps the same weights on the same gradients. LARS and LAMB are in
tests/training/test_optimizers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power
from torch import nn

from harness.training import optimizers
from harness.training.optimizers import FrozenAdam, Muon, Shampoo

STEPS = 5
#: Tall, wide, square, and larger than a block (which the test makes small).
SHAPES = [(6, 3), (3, 6), (4, 4), (7, 5)]


def gradients(shape: Sequence[int], count: int = STEPS) -> list[np.ndarray]:
    source = np.random.default_rng(sum(shape))
    return [source.normal(size=shape) * 10.0 ** source.integers(-2, 2) for _ in range(count)]


def trained(
    make: Callable[[list[nn.Parameter]], Any], start: np.ndarray, grads: Sequence[np.ndarray],
    *, outer: bool = False,
) -> np.ndarray:  # fmt: skip
    """Return the weights after a step on each gradient."""
    weight = nn.Parameter(torch.tensor(start))
    setattr(weight, optimizers.OUTER, outer)
    optimizer = make([weight])
    for gradient in grads:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    return weight.detach().numpy()


def started(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape)


def muon(
    weight: np.ndarray, grads: Sequence[np.ndarray], lr: float, beta: float, decay: float
) -> np.ndarray:
    """Jordan et al., "Muon: an optimizer for hidden layers" (2024), algorithm and code.

    Newton-Schulz is a polynomial of the singular values, so they are computed here by SVD, and the
    polynomial is applied to each of them five times.
    """
    momentum = np.zeros_like(weight)
    for gradient in grads:
        momentum = beta * momentum + (1 - beta) * gradient
        ahead = beta * momentum + (1 - beta) * gradient
        left, values, right = np.linalg.svd(ahead / np.linalg.norm(ahead), full_matrices=False)
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        longer = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
        weight = weight * (1 - lr * decay) - lr * longer * (left * values) @ right
    return weight


@pytest.mark.parametrize("shape", SHAPES)
def test_muon(shape: tuple[int, int]) -> None:
    lr, beta, decay = 0.02, 0.95, 0.1
    grads, start = gradients(shape), started(shape)
    seen = trained(
        lambda p: Muon(p, lr, momentum=beta, weight_decay=decay, dtype=torch.float64), start, grads
    )
    np.testing.assert_allclose(seen, muon(start, grads, lr, beta, decay), rtol=1e-9)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon yet")
@pytest.mark.parametrize("shape", SHAPES)
def test_muon_matches_torch(shape: tuple[int, int]) -> None:
    """Both compute in bf16 by default, as published, and agree to about 8 bits."""
    grads, start = gradients(shape), started(shape)
    seen = trained(lambda p: Muon(p, 0.02, weight_decay=0.1), start, grads)
    wanted = trained(lambda p: torch.optim.Muon(p, lr=0.02, weight_decay=0.1), start, grads)
    moved = np.linalg.norm(wanted - start)
    assert np.linalg.norm(seen - wanted) < 0.05 * moved


def test_muon_steps_each_matrix_of_a_stack_and_a_convolution_as_one() -> None:
    grads = [g.reshape(3, 4, 2) for g in gradients((12, 2))]
    start = started((3, 4, 2))
    make = lambda p: Muon(p, 0.1, momentum=0.9, weight_decay=0.0, dtype=torch.float64)  # noqa: E731
    stack = trained(make, start, grads)
    for i in range(3):
        wanted = muon(start[i], [g[i] for g in grads], 0.1, 0.9, 0.0)
        np.testing.assert_allclose(stack[i], wanted, rtol=1e-9)
    kernel = trained(make, start.reshape(3, 4, 2, 1), [g.reshape(3, 4, 2, 1) for g in grads])
    wanted = muon(start.reshape(3, 8), [g.reshape(3, 8) for g in grads], 0.1, 0.9, 0.0)
    np.testing.assert_allclose(kernel.reshape(3, 8), wanted, rtol=1e-9)


def adam_direction(
    grads: Sequence[np.ndarray], betas: tuple[float, float], eps: float
) -> list[np.ndarray]:
    """Kingma and Ba (2015), Algorithm 1."""
    mean = square = np.zeros_like(grads[0])
    out = []
    for t, gradient in enumerate(grads, 1):
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        corrected = mean / (1 - betas[0] ** t), square / (1 - betas[1] ** t)
        out.append(corrected[0] / (np.sqrt(corrected[1]) + eps))
    return out


def test_muon_uses_adamw_for_embeddings_and_heads() -> None:
    start, grads = started((4, 3)), gradients((4, 3))
    seen = trained(lambda p: Muon(p, 0.02, weight_decay=0.1), start, grads, outer=True)
    wanted = start
    for way in adam_direction(grads, (0.9, 0.95), 1e-8):
        wanted = wanted * (1 - 0.02 * 0.05 * 0.1) - 0.02 * 0.05 * way
    np.testing.assert_allclose(seen, wanted, rtol=1e-9)


def test_embeddings_and_heads_are_outer_layers() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    optimizers.note_outer(model)
    hidden = [name for name, p in model.named_parameters() if optimizers.is_hidden(p)]
    assert hidden == ["1.weight"]
    with pytest.raises(AssertionError, match="no mark of note_outer"):
        optimizers.is_hidden(nn.Parameter(torch.zeros(2, 2)))


def shampoo(weight: np.ndarray, grads: Sequence[np.ndarray], lr: float, decay: float) -> np.ndarray:
    """Gupta, Koren and Singer (ICML 2018), Algorithm 1, as Shi et al. (2023) train with it.

    Their Algorithm 2: running means with bias correction, a filtered gradient, grafting of Adam's
    step length, decoupled weight decay. The ridge follows Anil et al. (2020), relative to the
    largest eigenvalue. scipy computes the roots.
    """
    rows, columns = weight.shape
    left, right = np.zeros((rows, rows)), np.zeros((columns, columns))
    mean = np.zeros_like(weight)
    for t, (g, way) in enumerate(
        zip(grads, adam_direction(grads, (0.9, 0.999), 1e-8), strict=True), 1
    ):
        left, right = 0.999 * left + 0.001 * g @ g.T, 0.999 * right + 0.001 * g.T @ g
        mean = 0.9 * mean + 0.1 * g
        roots = []
        for covariance in (left, right):
            unbiased = covariance / (1 - 0.999**t)
            ridge = 1e-6 * np.linalg.eigvalsh(unbiased).max() * np.eye(len(unbiased))
            roots.append(np.real(fractional_matrix_power(unbiased + ridge, -0.25)))
        direction = roots[0] @ (mean / (1 - 0.9**t)) @ roots[1]
        direction *= np.linalg.norm(way) / np.linalg.norm(direction)
        weight = weight * (1 - lr * decay) - lr * direction
    return weight


@pytest.mark.parametrize("shape", SHAPES)
def test_shampoo(shape: tuple[int, int]) -> None:
    grads, start = gradients(shape), started(shape)
    seen = trained(lambda p: Shampoo(p, 0.01, weight_decay=0.1), start, grads)
    np.testing.assert_allclose(seen, shampoo(start, grads, 0.01, 0.1), rtol=1e-6)


def test_shampoo_preconditions_blocks_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "BLOCK", 4)
    grads, start = gradients((7, 5)), started((7, 5))
    seen = trained(lambda p: Shampoo(p, 0.01, weight_decay=0.1), start, grads)
    for rows in (slice(0, 4), slice(4, 7)):
        for columns in (slice(0, 4), slice(4, 5)):
            place = (rows, columns)
            wanted = shampoo(start[place], [g[place] for g in grads], 0.01, 0.1)
            np.testing.assert_allclose(seen[place], wanted, rtol=1e-6)


def adafactor(weight: np.ndarray, grads: Sequence[np.ndarray], lr: float) -> np.ndarray:
    """Shazeer and Stern (ICML 2018), Algorithm 4 with the parameters of Algorithm 6's proposal.

    Matrices keep a mean of squares per row and per column. torch adds eps inside the roots in its
    own way, which has no effect here, as gradients are far above it.
    """
    rows, columns = np.zeros(weight.shape[0]), np.zeros(weight.shape[1])
    for t, gradient in enumerate(grads, 1):
        decay = 1 - t**-0.8
        size = max(1e-3, np.sqrt(np.mean(weight**2))) * min(lr, t**-0.5)
        rows = decay * rows + (1 - decay) * np.mean(gradient**2, 1)
        columns = decay * columns + (1 - decay) * np.mean(gradient**2, 0)
        update = gradient / np.sqrt(np.outer(rows, columns) / rows.mean())
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        weight = weight - size * update
    return weight


@pytest.mark.parametrize("shape", SHAPES)
def test_adafactor_of_torch(shape: tuple[int, int]) -> None:
    grads, start = gradients(shape), started(shape)
    seen = trained(lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.0), start, grads)
    np.testing.assert_allclose(seen, adafactor(start, grads, 0.01), rtol=1e-6)


def test_frozen_adam_freezes_the_variance() -> None:
    """Tang et al. (ICML 2021), Algorithm 1, on one worker that compresses nothing."""
    lr, frozen_after, start, grads = 0.01, 2, started((4, 3)), gradients((4, 3))
    weight, mean, square = start, np.zeros((4, 3)), np.zeros((4, 3))
    for t, gradient in enumerate(grads, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2 if t <= frozen_after else square
        weight = weight - lr * mean / (np.sqrt(square) + 1e-8)
    seen = trained(lambda p: FrozenAdam(p, lr, frozen_after), start, grads)
    np.testing.assert_allclose(seen, weight, rtol=1e-9)
