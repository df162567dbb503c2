"""Adam whose variance is frozen after some steps: what 1-bit Adam trains with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.training.parallel import norms


class FrozenAdam(Optimizer):
    """Adam for ``frozen_after`` steps; then its variance stays (Tang et al., 2021, Algorithm 1).

    So that what is left is linear in the gradients, and momentum may be exchanged in their place:
    the compressor ``onebit_adam`` does it. As in the paper nothing corrects for a bias of moments.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        frozen_after: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, dict(lr=lr, frozen_after=frozen_after, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                gradient = norms.gradient(parameter)
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(gradient)
                    state["square"] = torch.zeros_like(gradient)
                state["step"] += 1
                mean: Tensor = state["mean"].lerp_(gradient, 1 - first)
                square: Tensor = state["square"]
                if state["step"] <= group["frozen_after"]:
                    square.lerp_(gradient.square(), 1 - second)
                norms.local(parameter.detach()).addcdiv_(
                    mean, square.sqrt().add_(group["eps"]), value=-group["lr"]
                )
