"""Exchanges as their papers define them, in one process, compared with real ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from harness.training.compressors import dgc, onebit_adam, terngrad
from harness.training.optimizers import FrozenAdam
from harness.training.rank.invariants import CodecBucket
from harness.training.strategies import easgd, zero_one_adam
from harness.training.transports import Late
from tests.literature.conftest import World

RANKS, SIZE, STEPS = 4, 64, 12


def gradient(step: int, rank: int) -> np.ndarray:
    source = np.random.default_rng(step * 100 + rank)
    return source.normal(size=SIZE) * (1 + 5 * (np.arange(SIZE) % 7 == step % 7))


def place(rank: int, ranks: int = RANKS) -> Any:
    """The attributes of a context that a hook reads."""
    case = SimpleNamespace(seed=0)
    return SimpleNamespace(rank=rank, world_size=ranks, device=torch.device("cpu"), case=case)


def stepped(hook: Any, optimizer: Any, weight: nn.Parameter, rank: int) -> np.ndarray:
    bucket = CodecBucket([weight])
    for step in range(STEPS):
        flat = torch.tensor(gradient(step, rank), dtype=torch.float32)
        weight.grad = hook(bucket.fill(flat)).wait().clone().view_as(weight)
        optimizer.step()
    return weight.detach().double().numpy()


def onebit_adam_by_hand(dense: int, lr: float, block: int) -> np.ndarray:
    """Tang et al., "1-bit Adam" (ICML 2021), Algorithm 1: each worker and server in turn.

    Workers compress their own new momentum and keep the error (delta); the server of each part
    adds, compresses again and keeps that error (delta bar). A block's scale is its mean magnitude.
    """

    def compressed(x: np.ndarray) -> np.ndarray:
        blocks = x.reshape(-1, block)
        scale = np.abs(blocks).mean(1, keepdims=True)
        return (scale * np.where(blocks >= 0, 1, -1)).reshape(-1)

    weight, momentum, variance = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    owed, server_owed = np.zeros((RANKS, SIZE)), np.zeros(SIZE)
    for t in range(STEPS):
        grads = np.stack([gradient(t, rank) for rank in range(RANKS)])
        if t < dense:
            momentum = 0.9 * momentum + 0.1 * grads.mean(0)
            variance = 0.999 * variance + 0.001 * grads.mean(0) ** 2
        else:
            wanted = 0.9 * momentum + 0.1 * grads + owed
            sent = np.stack([compressed(row) for row in wanted])
            owed = wanted - sent
            total = sent.mean(0) + server_owed
            momentum = compressed(total)
            server_owed = total - momentum
        weight = weight - lr * momentum / (np.sqrt(variance) + 1e-8)
    return weight


def onebit_adam_of(rank: int, dense: int) -> np.ndarray:
    weight = nn.Parameter(torch.zeros(SIZE))
    knobs = {"block": 8, "feedback": True, "momentum": 0.9}
    hook = Late(onebit_adam.build(place(rank), knobs), dense, RANKS)
    return stepped(hook, FrozenAdam([weight], 0.01, dense), weight, rank)


@pytest.mark.parametrize("dense", [1, 4])
def test_onebit_adam(trained: list[dict[str, np.ndarray]], dense: int) -> None:
    wanted = onebit_adam_by_hand(dense, 0.01, 8)
    for seen in trained:
        np.testing.assert_allclose(seen[f"onebit_adam {dense}"], wanted, rtol=2e-4, atol=1e-5)


def zero_one_adam_by_hand(lr: float, block: int, until: int, period: int) -> np.ndarray:
    """Lu et al., "0/1 Adam" (ICLR 2023), Algorithm 1 with the policies of its section 6.1.

    T_v: the variance is updated at k_0 = 0 and k_(j+1) = k_j + 2^floor(j / kappa), kappa = 2 here,
    before ``until``. T_u: all steps before it, then the last of each period. As in the authors'
    code, the full mean gradient also enters the momentum at the steps of T_v, and the variance is
    updated before the step. Returns the weights of rank 0 at the end, when all ranks agree.
    """

    def compressed(x: np.ndarray) -> np.ndarray:
        blocks = x.reshape(-1, block)
        scale = np.abs(blocks).mean(1, keepdims=True)
        return (scale * np.where(blocks >= 0, 1, -1)).reshape(-1)

    fresh, k, j = set(), 0, 0
    while k < until:
        fresh.add(k)
        k, j = k + 2 ** (j // 2), j + 1
    x, m, u = np.zeros((RANKS, SIZE)), np.zeros((RANKS, SIZE)), np.zeros((RANKS, SIZE))
    v, agreed, rates = np.zeros(SIZE), np.zeros(SIZE), 0.0
    owed, server_owed = np.zeros((RANKS, SIZE)), np.zeros(SIZE)
    for t in range(STEPS):
        g = np.stack([gradient(t, rank) for rank in range(RANKS)])
        if t in fresh:
            g = np.tile(g.mean(0), (RANKS, 1))
            v = 0.999 * v + 0.001 * g[0] ** 2
        m = 0.9 * m + 0.1 * g
        x = x - lr * m / (np.sqrt(v) + 1e-8)
        u, rates = u + lr * m, rates + lr
        if t not in fresh and (t < until or (t + 1) % period == 0):
            wanted = u + owed
            sent = np.stack([compressed(row) for row in wanted])
            owed = wanted - sent
            total = sent.mean(0) + server_owed
            mean = compressed(total)
            server_owed = total - mean
            m = np.tile(mean / rates, (RANKS, 1))
            x = np.tile(agreed - mean / (np.sqrt(v) + 1e-8), (RANKS, 1))
        if t in fresh or t < until or (t + 1) % period == 0:
            agreed, u, rates = x[0], np.zeros((RANKS, SIZE)), 0.0
    return x[0]


def zero_one_adam_of(rank: int) -> np.ndarray:
    model = nn.Linear(SIZE, 1, bias=False)
    model.weight.detach().zero_()
    optimizer = FrozenAdam(model.parameters(), 0.01, 7)
    knobs = dict(zero_one_adam.KNOBS, period=3, until=7, kappa=2, block=8)
    rule = zero_one_adam.Moved(model, optimizer, knobs)
    for step in range(STEPS):
        model.weight.grad = torch.tensor(gradient(step, rank), dtype=torch.float32)[None]
        rule.average()
        optimizer.step()
        rule.after(step)
    return model.weight.detach().double().numpy()[0]


def test_zero_one_adam(trained: list[dict[str, np.ndarray]]) -> None:
    wanted = zero_one_adam_by_hand(0.01, 8, until=7, period=3)
    for seen in trained:
        np.testing.assert_allclose(seen["zero_one_adam"], wanted, rtol=2e-4, atol=1e-5)


def dgc_by_hand(rho: float, warm_up: int, clip: float, lr: float) -> np.ndarray:
    """Lin et al., "Deep gradient compression" (ICLR 2018), Algorithm 4 with sections 3.2 and 3.3.

    Local clipping to clip / sqrt(N), momentum correction, factor masking, and a sparsity that
    grows exponentially during warm-up: 75, 93.75, 98.4375 and 99.6 %.
    """
    velocity, owed, weight = np.zeros((RANKS, SIZE)), np.zeros((RANKS, SIZE)), np.zeros(SIZE)
    for t in range(STEPS):
        share = max(rho, 0.25 ** (1 + t * 4 // warm_up)) if t < warm_up else rho
        k = max(1, int(share * SIZE))
        total = np.zeros(SIZE)
        for rank in range(RANKS):
            local = gradient(t, rank)
            local = local * min(1.0, clip / np.sqrt(RANKS) / np.linalg.norm(local))
            velocity[rank] = 0.9 * velocity[rank] + local
            owed[rank] += velocity[rank]
            mask = np.zeros(SIZE, bool)
            mask[np.argsort(-np.abs(owed[rank]))[:k]] = True
            total += np.where(mask, owed[rank], 0)
            owed[rank][mask] = velocity[rank][mask] = 0
        weight = weight - lr * total / RANKS
    return weight


def dgc_of(rank: int, warm_up: int, clip: float) -> np.ndarray:
    """Train with plain SGD: the method has its own momentum."""
    weight = nn.Parameter(torch.zeros(SIZE))
    knobs = dict(dgc.KNOBS, rho=0.05, sampled=1.0, warm_up=warm_up, clip=clip)
    hook = dgc.build(place(rank), knobs)
    return stepped(hook, torch.optim.SGD([weight], 0.1), weight, rank)


@pytest.mark.parametrize(("warm_up", "clip"), [(0, 1e9), (4, 2.0)])
def test_dgc(trained: list[dict[str, np.ndarray]], warm_up: int, clip: float) -> None:
    wanted = dgc_by_hand(0.05, warm_up, clip, 0.1)
    for seen in trained:
        np.testing.assert_allclose(seen[f"dgc {warm_up}"], wanted, rtol=1e-4, atol=1e-5)
    assert dgc.METHOD["optimizer"] == "sgd"


@pytest.fixture(scope="module")
def trained(world: World) -> list[dict[str, np.ndarray]]:
    """The weights of every rank after the steps of each method."""

    def rank_of(rank: int) -> dict[str, np.ndarray]:
        return {
            **{f"onebit_adam {dense}": onebit_adam_of(rank, dense) for dense in (1, 4)},
            "zero_one_adam": zero_one_adam_of(rank),
            **{f"dgc {w}": dgc_of(rank, w, clip) for w, clip in ((0, 1e9), (4, 2.0))},
        }

    return world(RANKS, rank_of)


@pytest.mark.parametrize("clip", [0.0, 2.5])
def test_terngrad_is_unbiased_exactly_without_clipping(clip: float) -> None:
    """Wen et al. (NeurIPS 2017): E[s b sign(g)] = g (Theorem 1), unless g is clipped."""
    x = torch.distributions.StudentT(3.0).sample((1, 256)) * 2
    codec = terngrad.Codec({"block": 256, "clip": clip}, torch.Generator().manual_seed(3))
    draws = 2000
    mean = torch.stack([codec.decode(codec.encode(x), 256)[0] for _ in range(draws)]).mean(0)
    largest = float(x.abs().max() if not clip else min(x.abs().max(), clip * x.std(correction=0)))
    noise = (256 * largest * float(x.abs().mean()) / draws) ** 0.5
    is_off = float((mean - x[0]).norm()) > 2 * noise
    assert is_off == bool(clip)
    hook = terngrad.build(place(0, 1), {"block": 256, "clip": clip})
    assert hook.claim == ("descends" if clip else "unbiased")


@pytest.mark.parametrize("ranks", [2, 8])
def test_easgd_at_any_number_of_ranks(ranks: int) -> None:
    """Zhang, Choromanska and LeCun (NeurIPS 2015), Algorithm 1, with alpha = beta / p, beta = 0.9.

    Every worker moves towards the centre before the centre moves towards the workers.
    """
    start = np.random.default_rng(0).normal(size=(ranks, 5))
    models = [nn.Linear(5, 1, bias=False).double() for _ in range(ranks)]
    centre = start[0]
    for model, row in zip(models, start, strict=True):
        model.weight.detach().copy_(torch.tensor(row)[None])
    batching: Any = None
    knobs = dict(easgd.KNOBS, period=1)
    rules = easgd.Simulation(models, batching, knobs)
    workers = start
    for step in range(4):
        away = workers - centre
        workers = workers - 0.9 / ranks * away
        centre = centre + 0.9 / ranks * away.sum(0)
        rules.after(step)
    seen = np.stack([model.weight.detach().numpy()[0] for model in models])
    np.testing.assert_allclose(seen, workers, rtol=1e-12)
    np.testing.assert_allclose(rules.centre.numpy(), centre, rtol=1e-12)
