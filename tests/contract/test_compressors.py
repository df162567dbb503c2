"""Arithmetic of the compressors on random gradients, in a process group of one rank."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings, strategies as st

from harness.cases import Catalogue
from harness.training import transports
from harness.training.compressors import countsketch, int8, natural, onebit, qsgd, randomk, topk
from harness.training.rank.invariants import CodecBucket

CODECS = [n for n, e in Catalogue().entries["compressors"].items() if not e.head.get("CONTROL")]
quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def hook(name: str, **knobs: Any) -> Any:
    module = importlib.import_module(f"harness.training.compressors.{name}")
    case = SimpleNamespace(seed=0)
    context = SimpleNamespace(world_size=1, rank=0, case=case, device=torch.device("cpu"))
    return module.build(context, {**getattr(module, "KNOBS", {}), **knobs})


shapes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)
WITH_FEEDBACK = {
    "topk": {"rho": 0.3}, "masked_topk": {"rho": 0.3}, "powersgd": {"rank": 1},
    "threshold": {"threshold": 1.0, "rho": 0.3}, "dgc": {"rho": 0.3, "momentum": 0.0},
    "randomk": {"rho": 0.3}, "countsketch": {"rho": 0.3}, "efsign": {"block": 8},
    "onebit": {"block": 8},
}  # fmt: skip


@quick
@given(shapes, st.sampled_from(list(WITH_FEEDBACK)), st.integers(0, 99))
def test_error_feedback_telescopes(shapes: list[tuple[int, int]], name: str, seed: int) -> None:
    """The sent parts of all rounds plus the outstanding part add up to all gradients."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.zeros(s)) for s in shapes]
    bucket, encode = CodecBucket(parameters), hook(name, **WITH_FEEDBACK[name])
    n = sum(p.numel() for p in parameters)
    total = sent = torch.zeros(n)
    for _ in range(12):
        gradient = torch.randn(n, generator=generator)
        total, sent = total + gradient, sent + encode(bucket.fill(gradient)).wait()
    owed = torch.cat(
        [encode.feedback.owed.get(p, torch.zeros(p.numel())).flatten() for p in parameters]
    )
    for sums in getattr(encode, "of_sums", {}).values():
        owed = owed + sums[0][:n]
    assert torch.allclose(sent + owed, total, atol=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2000), st.sampled_from([16, 64, 256]), st.integers(0, 99))
def test_int8_error_is_at_most_half_a_step(n: int, block: int, seed: int) -> None:
    x = torch.randn(1, -(-n // block) * block, generator=torch.Generator().manual_seed(seed)) * 10
    codec = int8.Codec({"block": block}, torch.Generator())
    message = codec.encode(x)
    assert message.numel() == x.numel() * (1 + 4 / block), "one byte each, four a block"
    scale = x.view(-1, block).abs().amax(1) / 127
    error = (codec.decode(message, x.numel()) - x).view(-1, block).abs().amax(1)
    assert (error <= scale / 2 * 1.0001 + 1e-7).all()


@given(st.integers(1, 5), st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(0, 99))
def test_packing_has_an_inverse(rows: int, bits: int, count: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    size = (rows, count * 8 // bits)
    values = torch.randint(2**bits, size, generator=source, dtype=torch.uint8)
    message = transports.packed(values, bits)
    assert message.shape == (rows, count)
    meaning = transports.lookup(bits, list(range(2**bits)))
    assert (transports.unpacked(message, meaning) == values).all()


@pytest.mark.parametrize(
    "name",
    [n for n in CODECS if n in ("int8", "fp8", "onebit", "qsgd", "terngrad", "natural", "signsgd")],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_messages_have_the_stated_length(name: str, rows: int) -> None:
    module = importlib.import_module(f"harness.training.compressors.{name}")
    codec = module.Codec(module.KNOBS, torch.Generator())
    x = torch.randn(rows, 3 * codec.unit * 8)
    message = codec.encode(x)
    assert (message.dtype, message.shape) == (torch.uint8, (rows, codec.bytes(x.shape[1])))
    assert codec.decode(message, x.shape[1]).shape == x.shape
    for i in range(rows):  # rows are encoded independently
        if name in ("int8", "fp8", "onebit", "signsgd"):
            assert (codec.encode(x[i : i + 1]) == message[i : i + 1]).all()


def test_natural_rounds_to_the_neighbouring_powers_of_two() -> None:
    x = torch.tensor([[3.0, -0.75, 1e-38, 0.0, 4.0, -5e7]])
    codec = natural.Codec({}, torch.Generator().manual_seed(0))
    seen = torch.cat([codec.decode(codec.encode(x), 6) for _ in range(400)])
    assert set(seen[:, 0].tolist()) == {2.0, 4.0} and set(seen[:, 1].tolist()) == {-0.5, -1.0}
    assert (seen[:, 2] == 0).all() and (seen[:, 3] == 0).all() and (seen[:, 4] == 4.0).all()
    assert float(seen[:, 0].mean()) == pytest.approx(3.0, abs=0.2)
    assert float(seen[:, 5].mean()) == pytest.approx(-5e7, rel=0.05)


def test_qsgd_rounds_to_a_neighbouring_level() -> None:
    x = torch.randn(1, 512, generator=torch.Generator().manual_seed(1))
    codec = qsgd.Codec({"block": 512}, torch.Generator().manual_seed(0))
    step = float(x.norm()) / qsgd.LEVELS
    assert ((codec.decode(codec.encode(x), 512) - x).abs() < step * 1.0001).all()


@given(st.integers(0, 10**6), st.integers(1, 3000), st.floats(0.001, 1.0))
def test_random_places_are_distinct(step: int, n: int, rho: float) -> None:
    k = transports.kept(n, rho)
    index = randomk.places(step, n, k, torch.device("cpu"))
    assert len(set(index.tolist())) == k and int(index.min()) >= 0 and int(index.max()) < n


def test_every_place_is_drawn_as_often() -> None:
    counts = torch.zeros(60)
    for step in range(3000):
        counts[randomk.places(step, 60, 6, torch.device("cpu"))] += 1
    assert float((counts - 300).abs().max()) < 6 * 300**0.5


def test_a_sketch_finds_the_largest() -> None:
    """A gradient with a few large entries among many small ones."""
    gradient = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 0.01
    large = torch.tensor([7, 99, 1234, 3999])
    gradient[large] = torch.tensor([5.0, -4.0, 3.0, -6.0])
    bucket = CodecBucket([torch.nn.Parameter(torch.zeros(4000))])
    handed_on = hook("countsketch", rho=0.01)(bucket.fill(gradient)).wait()
    assert (handed_on[large] == gradient[large]).all()
    assert countsketch.KNOBS["rows"] % 2, "a median of an even number of rows leans to one side"


@given(st.integers(1, 5000), st.floats(0.001, 1.0))
def test_topk_keeps_the_largest(n: int, rho: float) -> None:
    k = transports.kept(n, rho)
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
    k = transports.kept(1000, 0.1)
    sent = torch.zeros_like(x)
    index = topk.select(x, k)
    sent[index] = x[index]
    assert (x - sent).norm() <= (1 - k / 1000) ** 0.5 * x.norm()


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "int8", "fp8"])
def test_stateless_compressors_stay_below_their_stated_error(name: str) -> None:
    module = importlib.import_module(f"harness.training.compressors.{name}")
    parameters = [torch.nn.Parameter(torch.zeros(300, 40))]
    gradient = torch.randn(300, 40)
    seen = hook(name)(CodecBucket(parameters).fill(gradient.flatten())).wait()
    assert (seen.view_as(gradient) - gradient).norm() / gradient.norm() <= module.ERROR_BOUND


@pytest.mark.parametrize("name", ["onebit", "terngrad", "qsgd"])
def test_blocks_that_do_not_fill_whole_bytes_are_refused(name: str) -> None:
    module = importlib.import_module(f"harness.training.compressors.{name}")
    with pytest.raises(ValueError, match="block is 7"):
        module.Codec({**module.KNOBS, "block": 7}, torch.Generator())


def test_signs_of_a_block_have_its_mean_magnitude() -> None:
    x = torch.tensor([[1.0, -3.0, 2.0, -2.0, 1.0, -3.0, 2.0, -2.0]])
    codec = onebit.Codec({"block": 8}, torch.Generator())
    assert codec.decode(codec.encode(x), 8).tolist() == [[2.0, -2.0] * 4]
