"""Norms of tensors that are split, so that each rank holds one part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

#: Name of the attribute of a plain parameter that is only a part of a tensor. Its value is the
#: group of the ranks that hold the parts.
PARTED = "parted_over"


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a parameter's gradient.

    If the gradient's placements differ from the parameter's, it is redistributed first.
    """
    grad = parameter.grad
    if isinstance(parameter, DTensor) and isinstance(grad, DTensor):
        if (
            grad.placements != parameter.placements
        ):  # tensor parallelism leaves some gradients whole
            parameter.grad = grad.redistribute(placements=parameter.placements)
        grad = parameter.grad
    assert grad is not None
    return local(grad)


def squares(parameters: Sequence[nn.Parameter], held: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of each whole tensor, float64 of shape (len(held),).

    ``held`` lists this rank's part of each tensor, and the tensors are split like ``parameters``.
    This is a collective of the ranks that hold the parts.
    """
    norms = torch._foreach_norm([tensor.double() for tensor in held])
    squared = torch.stack(norms).square()
    together: dict[tuple[dist.ProcessGroup, ...], list[int]] = {}
    for i, parameter in enumerate(parameters):
        together.setdefault(_holders(parameter), []).append(i)
    for over, indices in together.items():
        sums = squared[indices]
        for group in over:
            dist.all_reduce(sums, group=group)
        squared[indices] = sums
    return squared


def clip(
    parameters: Sequence[nn.Parameter], most: float, stages: dist.ProcessGroup | None = None
) -> None:
    """Scale all gradients so that their common norm is at most ``most`` (Pascanu et al., 2013).

    ``stages`` is the group of the ranks that train the other parameters of the model. The norm
    includes the gradients of these ranks.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [gradient(parameter) for parameter in parameters]
    total = squares(parameters, gradients).sum()
    if stages is not None:
        dist.all_reduce(total, group=stages)
    factor = (most / (total.sqrt() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))


def _holders(parameter: nn.Parameter) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups of ranks that together hold all parts of a parameter."""
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        cut = [i for i, place in enumerate(parameter.placements) if not place.is_replicate()]
        return tuple(mesh.get_group(i) for i in cut if mesh.size(i) > 1)
    group = getattr(parameter, PARTED, None)
    return () if group is None else (group,)
