"""Products of linear layers in 8 bits: e4m3 forward, e5m2 for gradients, one scale per tensor.

Micikevicius et al., "FP8 formats for deep learning", 2022. Weights, sums and all other layers stay
as they are.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

FORWARD = torch.float8_e4m3fn
BACKWARD = torch.float8_e5m2
#: Rows and columns that a device's units take at once.
TILE = 16


def narrowed(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in 8 bits, and the factor that gives it back its size."""
    largest = x.abs().amax().float().clamp(min=1e-12)
    factor = largest / torch.finfo(dtype).max
    return (x.float() / factor).to(dtype), factor


def product(a: Tensor, b: Tensor, dtype: torch.dtype, *factors: Tensor) -> Tensor:
    """A (m, k) by b (k, n), both in 8 bits, as the device's own operator computes it."""
    unit = torch.ones((), device=a.device)
    left, right = factors or (unit, unit)
    rows, columns = a.contiguous(), b.t().contiguous().t()  # as the operator wants to have them
    return torch._scaled_mm(rows, columns, left, right, out_dtype=dtype)


class Narrow(torch.autograd.Function):
    """x (m, k) by the transposed weight (n, k)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (left, by), (right, times) = narrowed(x, FORWARD), narrowed(weight, FORWARD)
        ctx.save_for_backward(left, by, right, times)
        return product(left, right.t(), x.dtype, by, times)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        left, by, right, times = ctx.saved_tensors
        above, of = narrowed(gradients[0], BACKWARD)
        dtype = gradients[0].dtype
        return product(above, right, dtype, of, times), product(above.t(), left, dtype, of, by)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Applies the layer to x (..., in)."""
    rows = x.reshape(-1, x.shape[-1])
    output: Tensor = Narrow.apply(rows, layer.weight)  # type: ignore[no-untyped-call]
    output = output.reshape(*x.shape[:-1], -1)
    return output if layer.bias is None else output + layer.bias


def layers(model: nn.Module) -> list[nn.Linear]:
    """The linear layers whose sides are whole tiles."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module.in_features % TILE == module.out_features % TILE == 0
    ]


def narrow(model: nn.Module) -> int:
    """Make every such layer compute in 8 bits; how many there are."""
    linears = layers(model)
    for layer in linears:
        layer.forward = functools.partial(linear, layer)  # type: ignore[method-assign]
    return len(linears)
