"""Matrix products of linear layers in 8 bits: e4m3 in forward, e5m2 for gradients, and one scale
per tensor.

The formats are from Micikevicius et al., "FP8 formats for deep learning", 2022. Stored weights,
sums and all other layers keep their dtypes.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

FORWARD = torch.float8_e4m3fn
BACKWARD = torch.float8_e5m2
#: Rows and columns of a tile. Each dimension of an fp8 matrix product must be a multiple of it.
TILE = 16


def narrowed(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the scaled tensor in 8 bits, and the factor that restores its scale."""
    largest = x.abs().amax().float().clamp(min=1e-12)
    factor = largest / torch.finfo(dtype).max
    return (x.float() / factor).to(dtype), factor


def product(a: Tensor, b: Tensor, dtype: torch.dtype, *factors: Tensor) -> Tensor:
    """Return the product of a (m, k) and b (k, n), both in 8 bits, by torch's ``_scaled_mm``.

    On CPUs that is a loop over all elements, a thousand times slower than a product in fp32. A CPU
    therefore multiplies the 8-bit values in fp32, which gives the same sums, under the same name in
    a profile.
    """
    unit = torch.ones((), device=a.device)
    left, right = factors or (unit, unit)
    if a.device.type == "cpu" and not torch.compiler.is_compiling():
        with record_function("_scaled_mm on a CPU"):
            return (a.float() @ b.float() * (left * right)).to(dtype)
    rows, columns = a.contiguous(), b.t().contiguous().t()  # the layouts that ``_scaled_mm`` needs
    return torch._scaled_mm(rows, columns, left, right, out_dtype=dtype)


class Narrow(torch.autograd.Function):
    """The product of x (m, k) and the transposed weight (n, k), in 8 bits in both passes."""

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
    """Apply the layer to x (..., in) with an 8-bit product."""
    rows = x.reshape(-1, x.shape[-1])
    output: Tensor = Narrow.apply(rows, layer.weight)  # type: ignore[no-untyped-call]
    output = output.reshape(*x.shape[:-1], -1)
    return output if layer.bias is None else output + layer.bias


def layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers whose widths are multiples of ``TILE``."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module.in_features % TILE == module.out_features % TILE == 0
    ]


def narrow(model: nn.Module) -> int:
    """Make the layers that ``layers`` returns compute in 8 bits, and return their number."""
    linears = layers(model)
    for layer in linears:
        layer.forward = functools.partial(linear, layer)  # type: ignore[method-assign]
    return len(linears)
