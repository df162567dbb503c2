"""Invariants of the compressors' arithmetic, over random gradients (one rank, a real group)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings, strategies as st

from harness.training.compressors import int8, topk


class Bucket:
    """What a DDP hook is given: a flat buffer whose views are the gradients."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters
        self._flat = torch.zeros(sum(p.numel() for p in parameters))

    def fill(self, gradients: list[torch.Tensor]) -> Bucket:
        self._flat.copy_(torch.cat([g.flatten() for g in gradients]))
        return self

    def buffer(self) -> torch.Tensor:
        return self._flat

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        cuts = self._flat.split([p.numel() for p in self._parameters])
        return [c.view_as(p) for c, p in zip(cuts, self._parameters, strict=True)]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def hook(name: str, **knobs: Any) -> Any:
    module = importlib.import_module(f"harness.training.compressors.{name}")
    context = SimpleNamespace(world_size=1)
    return module.build(context, {**getattr(module, "KNOBS", {}), **knobs})


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes, st.sampled_from(["topk", "powersgd", "masked_topk"]), st.integers(0, 99))
def test_error_feedback_telescopes(shapes: list[tuple[int, int]], name: str, seed: int) -> None:
    """What was sent in all rounds, plus what a last lossless round would send, is all there was."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.zeros(s)) for s in shapes]
    bucket = Bucket(parameters)
    encode = hook(name, **({"rho": 0.3} if "topk" in name else {"rank": 1}))
    total = sent = torch.zeros(sum(p.numel() for p in parameters))
    for _ in range(12):
        gradients = [torch.randn(p.shape, generator=generator) for p in parameters]
        total = total + torch.cat([g.flatten() for g in gradients])
        sent = sent + encode(bucket.fill(gradients)).wait()
    cells = dict(zip(encode.__code__.co_freevars, encode.__closure__, strict=True))
    errors = cells["feedback"].cell_contents._error
    owed = torch.cat([errors.get(p, torch.zeros(p.numel())).flatten() for p in parameters])
    assert torch.allclose(sent + owed, total, atol=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2000), st.sampled_from([16, 64, 256]), st.integers(0, 99))
def test_int8_error_is_at_most_half_a_step(n: int, block: int, seed: int) -> None:
    x = torch.randn(1, -(-n // block) * block, generator=torch.Generator().manual_seed(seed)) * 10
    message = int8.encode(x, block)
    assert message.numel() == x.numel() * (1 + 4 / block), "one byte each, four a block"
    scale = x.view(-1, block).abs().amax(1) / 127
    error = (int8.decode(message, block) - x).view(-1, block).abs().amax(1)
    assert (error <= scale / 2 * 1.0001 + 1e-7).all()


@given(st.integers(1, 5000), st.floats(0.001, 1.0))
def test_topk_keeps_the_largest(n: int, rho: float) -> None:
    k = topk.kept(n, rho)
    assert 1 <= k <= n
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    index = topk.select(x, k)
    assert len(set(index.tolist())) == k
    rest = x.abs().clone()
    rest[index] = -1
    assert rest.max() <= x[index].abs().min()


def test_topk_contracts() -> None:
    """norm(x - C(x)) <= sqrt(1 - k / n) norm(x)"""
    x = torch.randn(1000)
    k = topk.kept(1000, 0.1)
    sent = torch.zeros_like(x)
    index = topk.select(x, k)
    sent[index] = x[index]
    assert (x - sent).norm() <= (1 - k / 1000) ** 0.5 * x.norm()


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "int8"])
def test_stateless_compressors_stay_below_their_stated_error(name: str) -> None:
    module = importlib.import_module(f"harness.training.compressors.{name}")
    parameters = [torch.nn.Parameter(torch.zeros(300, 40))]
    gradient = torch.randn(300, 40)
    seen = hook(name)(Bucket(parameters).fill([gradient])).wait()
    assert (seen.view_as(gradient) - gradient).norm() / gradient.norm() <= module.ERROR_BOUND
