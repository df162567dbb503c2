"""A replicate is the same training run with different rounding: no more memory, no bias."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness.cases import Compiled, Device, Site
from harness.training.rank import rounding
from harness.training.rank.rounding import OtherRounding, Rounding

CPU = torch.device("cpu")


def trained(way: Rounding) -> tuple[int, Tensor, Tensor]:
    """Return the bytes kept for backward, the loss, and the first layer's gradient."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 1000)]
    model = nn.Sequential(*layers).bfloat16()
    way.watch(model)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(torch.randn(512, 64).bfloat16()).float().logsumexp(-1).mean()
    size = sum(kept.values())
    loss.backward()
    gradient = layers[0].weight.grad
    assert isinstance(gradient, Tensor)
    return size, loss.detach(), gradient.float()


def test_a_replicate_keeps_no_more_memory_for_backward() -> None:
    usual, loss, gradient = trained(Rounding())
    other, near, turned = trained(OtherRounding(CPU, seed=1, coarse=False))
    assert other == usual
    assert 0 < abs(near / loss - 1) < 1e-3
    assert 0 < (turned - gradient).norm() / gradient.norm() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_number_changes_by_a_rounding_error_without_bias(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "AT_ONCE", 1 << 18)
    x = torch.randn(3 << 18).to(dtype)
    (changed,) = OtherRounding(CPU, seed=1, coarse=False).gradients([x])
    eps = torch.finfo(dtype).eps
    off = (changed.double() / x.double() - 1)[x.abs() > 1e-3]
    assert off.abs().max() < 2 * eps and off.abs().mean() > eps / 8
    assert abs(off.mean()) < 5 * off.std() / len(off) ** 0.5 + 1e-3 * eps


def test_a_compiled_case_is_repeated_eagerly_and_keeps_nothing() -> None:
    site = Site(device=Device.CPU, backend="gloo", nodes=(1,))
    way = OtherRounding(CPU, seed=1, coarse=False)
    compiled = way.case(site.case("ddp/decoder-nano", compiled=Compiled.INDUCTOR))
    assert compiled.compiled is Compiled.NO and compiled.checkpoint
    eager = site.case("ddp/decoder-nano")
    assert way.case(eager) is eager
    on_host = site.case("ddp/decoder-nano", compiled=Compiled.INDUCTOR, offload=True)
    assert not way.case(on_host).checkpoint


LIKELY = torch.tensor([[0.1, 0.4, 0.5], [0.4 * (1 + 2e-6), 0.2, 0.4], [0.3, 0.3001, 0.3999]])


@pytest.mark.parametrize(
    ("k", "tie", "row", "chosen"),
    [
        (1, 0, 1, {2}),  # by 2e-6
        (1, 1, 2, {2}),  # the next closest values are not tied
        (2, 0, 2, {0, 2}),  # the second choice, by 3e-4
        (2, 1, 0, {1, 2}),
        (3, 0, 0, {0, 1, 2}),
    ],
)
def test_a_replicate_resolves_one_tie_the_other_way(
    k: int, tie: int, row: int, chosen: set[int]
) -> None:
    likely = LIKELY.clone().requires_grad_()
    with OtherRounding(CPU, seed=1, coarse=False, tie=tie).choosing():
        values, indices = likely.topk(k, dim=-1)
        again = torch.topk(likely.T, k, dim=0).indices.T
        smallest = torch.topk(-likely, k, largest=False).indices
        highest = likely.argmax(-1)
        in_all = likely.argmax()
    usual = likely.topk(k, dim=-1).indices
    others = [i for i in range(3) if i != row]
    assert set(indices[row].tolist()) == chosen
    assert torch.equal(indices[others], usual[others])
    assert torch.equal(indices, again) and torch.equal(indices, smallest)
    assert k > 1 or torch.equal(highest, indices[:, 0])
    assert in_all == 2  # 0.5 is tied with nothing
    assert torch.equal(values, likely.gather(-1, indices))  # values are not changed
    (gradient,) = torch.autograd.grad(values.sum(), likely)
    assert gradient.sum() == 3 * k


def test_choices_without_rounding_ties_are_unchanged() -> None:
    flags = torch.tensor([[0, 1, 1], [1, 0, 1]])
    whole, empty = torch.tensor(0.5), torch.zeros(0, 3)
    with OtherRounding(CPU, seed=1, coarse=False).choosing():
        assert flags.argmax(-1).tolist() == [1, 0]
        assert torch.argmax(LIKELY, axis=-1).tolist() == [2, 0, 2]  # type: ignore[call-arg]
        assert whole.argmax() == 0
        assert torch.topk(empty, 1).indices.shape == (0, 1)


def test_a_replicate_resolves_ties_of_the_first_step_with_a_tie() -> None:
    usual = LIKELY.argmax(-1)
    replicate = OtherRounding(CPU, seed=1, coarse=False)
    steps = []
    for likely in (torch.tensor([0.1, 0.9]), LIKELY, LIKELY):
        with replicate.choosing():
            steps.append(likely.argmax(-1))
    assert steps[0] == 1
    assert not torch.equal(steps[1], usual) and torch.equal(steps[2], usual)
    with Rounding().choosing():
        assert torch.equal(LIKELY.argmax(-1), usual)
