"""Layer-wise optimizers, clipping and learning rates follow the formulas of their papers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from harness.cases import CaseSpec, Device, LearningRate, Mode, Optimizer
from harness.training import optimizers
from harness.training.parallel import norms

CASE = CaseSpec(
    strategy="ddp", model="mlp", size="nano", mode=Mode.WEAK, world_size=2, nodes=(2,),
    device=Device.CPU, backend="gloo",
)  # fmt: skip


def trained(make: Any, gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the weights after a step on each gradient, from the initial weights 3, 4."""
    weight = nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    optimizer = make([weight])
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def test_lars_is_you_gitman_and_ginsburg() -> None:
    """Two steps agree with algorithm 1 of the paper (arXiv 1708.03888), computed here.

    The weight decay is large, so that |g| + b |w| and |g + b w| differ by a third.
    """
    lr, momentum, decay, trust = 0.5, 0.9, 0.1, 0.1
    gradients = [torch.tensor([0.6, -0.8]).double(), torch.tensor([1.0, 2.0]).double()]
    weight, velocity = torch.tensor([3.0, 4.0]).double(), torch.zeros(2).double()
    for gradient in gradients:
        rate = trust * weight.norm() / (gradient.norm() + decay * weight.norm())
        velocity = momentum * velocity + lr * rate * (gradient + decay * weight)
        weight = weight - velocity
    seen = trained(
        lambda p: optimizers.LARS(p, lr, momentum=momentum, weight_decay=decay, trust=trust),
        gradients,
    )
    torch.testing.assert_close(seen, weight, rtol=1e-12, atol=0)


def test_lamb_follows_you_et_al() -> None:
    """Two steps agree with algorithm 2 of the paper (You et al., 2020), computed here."""
    lr, first, second, eps, decay = 0.1, 0.9, 0.99, 1e-6, 1e-2
    gradients = [torch.tensor([0.6, -0.8]).double(), torch.tensor([1.0, 2.0]).double()]
    weight = torch.tensor([3.0, 4.0]).double()
    mean, square = torch.zeros(2).double(), torch.zeros(2).double()
    for step, gradient in enumerate(gradients, 1):
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        way = mean / (1 - first**step) / ((square / (1 - second**step)).sqrt() + eps)
        way = way + decay * weight
        weight = weight - lr * weight.norm() / way.norm() * way
    seen = trained(
        lambda p: optimizers.LAMB(p, lr, betas=(first, second), eps=eps, weight_decay=decay),
        gradients,
    )
    torch.testing.assert_close(seen, weight, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [optimizers.LARS, optimizers.LAMB])
def test_weights_of_zero_still_learn(kind: Any) -> None:
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    kind([weight], 0.1).step()
    assert bool((weight < 0).all())


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_clipping_agrees_with_torch(values: list[float], most: float) -> None:
    ours, other = (nn.Parameter(torch.zeros(len(values))) for _ in range(2))
    ours.grad, other.grad = torch.tensor(values), torch.tensor(values)
    norms.clip([ours], most)
    nn.utils.clip_grad_norm_([other], most)
    torch.testing.assert_close(ours.grad, other.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("rule", "times"), [("fixed", 1.0), ("linear", 16.0), ("sqrt", 4.0)])
def test_the_learning_rate_grows_with_the_batch(rule: str, times: float) -> None:
    case = dataclasses.replace(CASE, learning_rate=LearningRate(rule), optimizer=Optimizer.SGD)
    _, settings = optimizers.chosen(case, global_batch=512, on_cpu=True)
    assert settings["lr"] == pytest.approx(0.05 * times)


def test_warm_up_reaches_the_whole_rate_and_is_in_the_state() -> None:
    case = dataclasses.replace(CASE, warm_up=4)
    weight = nn.Parameter(torch.ones(1))
    optimizer = optimizers.prepared(torch.optim.SGD([weight], lr=0.8), case)
    rates = []
    for _ in range(6):
        weight.grad = torch.ones(1)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    resumed = optimizers.prepared(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.8), case)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.param_groups[0]["begun"] == 6


def test_settings_that_need_whole_norms_are_refused() -> None:
    case = dataclasses.replace(CASE, clip=1.0)
    with pytest.raises(ValueError, match="clip is not supported with flat parameters"):
        optimizers.refuse(case, "flat parameters")
    optimizers.refuse(CASE, "flat parameters", warm_up=True)
