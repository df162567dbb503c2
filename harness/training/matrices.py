"""Optimizers whose steps follow from whole matrices: Muon and Shampoo.

A tensor of more than three dimensions (a convolution's) is a matrix of its first by all others; one
of three (experts, side by side) is a stack of matrices. Where ranks hold a matrix in parts, each
gathers all of what its step follows from, and takes its own part of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from harness.training.parallel import norms, traffic

#: The attribute of a parameter of the first or last layer: an embedding, or a head.
OUTER = "is_of_an_outer_layer"
#: Newton-Schulz coefficients of Jordan et al. (2024): steepest at zero.
QUINTIC = (3.4445, -4.7750, 2.0315)
#: Rows and columns of a block that Shampoo preconditions by itself (Shi et al., 2023).
BLOCK = 1024


def note_outer(model: nn.Module) -> None:
    """Say of every parameter whether it is of an embedding or of the last layer."""
    embedding = (
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding) or hasattr(module, "embeds")
    )
    outer = {p for module in embedding for p in module.parameters()}
    parts = list(model.children()) or [model]
    outer |= set(parts[-1].parameters())
    for parameter in model.parameters():
        setattr(parameter, OUTER, parameter in outer)


def carry_outer(before: Iterable[nn.Parameter], after: Iterable[nn.Parameter]) -> None:
    """Say the same of the parameters that stand for these from now on."""
    for old, new in zip(before, after, strict=True):
        if hasattr(old, OUTER):  # what is cut by width or by expert is no whole matrix any more
            setattr(new, OUTER, is_outer(old))


def is_outer(parameter: nn.Parameter) -> bool:
    """Whether it is of an embedding or of the last layer; AssertionError if nobody has said so."""
    noted: bool | None = getattr(parameter, OUTER, None)
    assert noted is not None, "nobody said which layer a parameter is of"
    return noted


def is_hidden(parameter: nn.Parameter) -> bool:
    """Whether it is a matrix between the first layer and the last."""
    return parameter.ndim > 1 and not is_outer(parameter)


def as_matrices(tensor: Tensor) -> Tensor:
    """Views the tensor as a matrix, or a stack of them."""
    return tensor.flatten(1) if tensor.ndim > 3 else tensor


def gathered(parameter: nn.Parameter, held: Tensor) -> Tensor:
    """The whole of a tensor of which ranks hold such parts as of the parameter; a collective."""
    if not isinstance(parameter, DTensor):
        return held
    like: DTensor = parameter
    whole: Tensor = DTensor.from_local(
        held, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    ).full_tensor()
    return whole


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """The part that this rank holds of a tensor that is whole on all of them."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part: Tensor = everywhere.redistribute(placements=parameter.placements).to_local()
    return part


def gathers(hidden: Sequence[Size], size: int, ranks: int) -> traffic.Traffic:
    """The bytes that a step of Muon sends where ranks hold parts of these matrices."""
    total = traffic.Traffic()
    for shape in hidden:
        total += traffic.all_gather(traffic.padded([shape], size, ranks), ranks)
    return total


class Muon(Optimizer):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024); AdamW for all else.

    All else: embeddings, the last layer, and what is no matrix, at ``other`` times the rate.
    """

    def __init__(  # noqa: PLR0913  (settings of an optimizer)
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        other: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            other=other,
            betas=betas,
            eps=eps,
            dtype=dtype,
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all parameters. A collective of the ranks that hold them in parts."""
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                gradient = norms.gradient(parameter)
                weights = norms.local(parameter.detach())
                hidden = is_hidden(parameter)
                rate = group["lr"] * (1.0 if hidden else group["other"])
                weights.mul_(1 - rate * group["weight_decay"])
                if hidden:
                    self.orthogonal(parameter, weights, gradient, group)
                else:
                    way = adam(self.state[parameter], gradient, group["betas"], group["eps"])
                    weights.sub_(way, alpha=rate)

    def orthogonal(
        self, parameter: nn.Parameter, weights: Tensor, gradient: Tensor, group: dict[str, Any]
    ) -> None:
        """Step one matrix along Nesterov's momentum with all singular values near 1."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        beta = group["momentum"]
        momentum: Tensor = state["momentum"].lerp_(gradient, 1 - beta)
        ahead = gathered(parameter, gradient.lerp(momentum, beta))
        matrices = as_matrices(ahead)
        rows, columns = matrices.shape[-2:]
        longer = max(1.0, rows / columns) ** 0.5
        update = orthogonalised(matrices, group["dtype"]).view(ahead.shape).to(weights.dtype)
        weights.sub_(own_part(parameter, update), alpha=group["lr"] * longer)


def orthogonalised(matrices: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """U V^T of U S V^T, roughly: five steps of Newton-Schulz, in ``dtype``."""
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.to(dtype)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    made: Tensor = (x.mT if tall else x).contiguous()
    return made


class Shampoo(Optimizer):
    """Gradients between the roots of their two covariances (Gupta, Koren and Singer, 2018).

    As Shi et al. (2023) train with it: blocks of matrices, running means, and steps as long as
    Adam's (grafting). Ranks share out the work under ``zero1``. A root takes at least ``eps`` of
    the largest eigenvalue for the smallest, as Anil et al. (2020) do. What is no matrix is Adam's.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        every: int = 1,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, every=every)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                gradient = parameter.grad
                state = self.state[parameter]
                way = adam(state, gradient, group["betas"], 1e-8)
                if parameter.ndim > 1:
                    way = self.preconditioned(state, gradient, way, group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(way, alpha=group["lr"])

    def preconditioned(
        self, state: dict[str, Any], gradient: Tensor, adams: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """The direction of a matrix, block by block, each as long as that of Adam's."""
        first, second = group["betas"]
        updates = torch.empty_like(adams)
        whole = as_matrices(gradient)
        mean = as_matrices(state["mean"]) / (1 - first ** state["step"])
        graft = as_matrices(adams)
        target = as_matrices(updates)
        for number, place in enumerate(blocks(whole.shape)):
            block = whole[place]
            if f"block{number}" not in state:
                state[f"block{number}"] = covariances(block)
            sums = state[f"block{number}"]
            sums["left"].lerp_(block @ block.mT, 1 - second)
            sums["right"].lerp_(block.mT @ block, 1 - second)
            if state["step"] % group["every"] == 0 or not sums["roots"]:
                unbiased = 1 - second ** state["step"]
                sums["roots"] = [root(sums[s] / unbiased, group["eps"]) for s in ("left", "right")]
            left, right = sums["roots"]
            way = left @ mean[place] @ right
            length = graft[place].norm(dim=(-2, -1), keepdim=True)
            norm = way.norm(dim=(-2, -1), keepdim=True)
            target[place] = way * torch.where(norm > 0, length / norm, torch.zeros_like(norm))
        return updates


def covariances(block: Tensor) -> dict[str, Any]:
    """Room for a block's two covariances, and for their roots."""
    rows, columns = block.shape[-2:]
    stack = block.shape[:-2]
    of_rows = block.new_zeros(*stack, rows, rows)
    right = block.new_zeros(*stack, columns, columns)
    return {"left": of_rows, "right": right, "roots": []}


def blocks(shape: Size) -> list[tuple[Any, ...]]:
    """Where the blocks of a matrix are, or of each of a stack."""
    rows, columns = shape[-2:]
    return [
        (..., slice(i, min(i + BLOCK, rows)), slice(j, min(j + BLOCK, columns)))
        for i in range(0, rows, BLOCK)
        for j in range(0, columns, BLOCK)
    ]


def root(matrix: Tensor, eps: float) -> Tensor:
    """The inverse fourth root of a symmetric matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix.double())
    largest = values[..., -1:].clamp(min=1e-300)
    inverse = values.clamp(min=0).add(eps * largest).pow(-0.25)
    roots: Tensor = ((vectors * inverse[..., None, :]) @ vectors.mT).to(matrix.dtype)
    return roots


def adam(state: dict[str, Any], gradient: Tensor, betas: tuple[float, float], eps: float) -> Tensor:
    """Adam's direction of this gradient, whose moments are kept in ``state``."""
    if "step" not in state:
        state.update(step=0, mean=torch.zeros_like(gradient), square=torch.zeros_like(gradient))
    first, second = betas
    state["step"] += 1
    mean: Tensor = state["mean"].lerp_(gradient, 1 - first)
    square: Tensor = state["square"].lerp_(gradient.square(), 1 - second)
    root_of_square = (square / (1 - second ** state["step"])).sqrt_().add_(eps)
    way: Tensor = (mean / (1 - first ** state["step"])).div_(root_of_square)
    return way
