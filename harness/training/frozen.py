"""Adam whose variance is frozen after some steps: what 1-bit and 0/1 Adam train with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.training.parallel import norms


def refreshed(until: int, kappa: int) -> Iterator[tuple[int, int, int]]:
    """The steps that bring a variance up to date, as ranges (start, stop, stride).

    The j-th is followed by the next one 2^floor(j / kappa) steps later, up to ``until`` (Lu et al.,
    2022, section 6.1). ``kappa`` = 0: all of them.
    """
    if not kappa:
        yield 0, until, 1
        return
    first, stride = 0, 1
    while first < until:
        yield first, min(first + kappa * stride, until), stride
        first += kappa * stride
        stride *= 2


def is_in(step: int, ranges: Iterable[tuple[int, int, int]]) -> bool:
    return any(step in range(*steps) for steps in ranges)


class FrozenAdam(Optimizer):
    """Adam for ``frozen_after`` steps; then its variance stays (Tang et al., 2021, Algorithm 1).

    So that what is left is linear in the gradients, and momentum may be exchanged in their place:
    the compressor ``onebit_adam`` does it. As in the paper nothing corrects for a bias of moments.
    ``fresh`` are the steps that bring the variance up to date; a strategy may say which.
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
        self.fresh = tuple(refreshed(frozen_after, 0))

    def divisor(self, parameter: nn.Parameter) -> Tensor:
        """The divisor of a parameter's momentum in a step."""
        square: Tensor = self.state[parameter]["square"]
        return square.sqrt().add_(float(self.defaults["eps"]))

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
                mean: Tensor = state["mean"].lerp_(gradient, 1 - first)
                if is_in(state["step"], self.fresh):
                    state["square"].lerp_(gradient.square(), 1 - second)
                state["step"] += 1
                norms.local(parameter.detach()).addcdiv_(
                    mean, self.divisor(parameter), value=-group["lr"]
                )
