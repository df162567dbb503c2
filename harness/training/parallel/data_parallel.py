"""Data parallelism: replicas with averaged gradients, or shards of all parameters (FSDP2)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from harness.cases import CaseSpec, Dim, Mesh
from harness.record import ModelFacts
from harness.training.context import RankContext, parts
from harness.training.optimizers import carry_outer
from harness.training.parallel import groups, traffic
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import LocalTrainer


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """A model with data parallelism, and the arguments with which ``LocalTrainer`` trains it."""

    module: nn.Module
    synchronise: Callable[[bool], None]
    named: Callable[[], Iterator[tuple[str, nn.Parameter]]] | None = None

    def trainer(self, ctx: RankContext, kind: type[LocalTrainer] = LocalTrainer) -> LocalTrainer:
        """Return a trainer of this model."""
        return kind(
            self.module,
            ctx,
            named=self.named,
            synchronise=self.synchronise,
            whole=lambda shard: whole(shard).to(ctx.device),  # shards may be on the host
            placements=placements(self.module),
        )


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor of a shard. This is a collective of the ranks that hold a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placements(module: nn.Module) -> tuple[str, ...]:
    """Return the observed placements of a module's parameters, for example ``Shard(dim=0)``.

    On a mesh of several dimensions each entry lists one placement per dimension. The entry of
    parameters that are not DTensors is ``plain``.
    """
    placed = (
        parameter.placements if isinstance(parameter, DTensor) else ()
        for parameter in module.parameters()
    )
    return tuple(sorted({" ".join(map(repr, p)) or "plain" for p in placed}))


def sharded(model: nn.Module, ctx: RankContext, knobs: Mapping[str, Any]) -> Wrapped:
    """Apply ``fully_shard`` to each block of an nn.Sequential, and then to the model.

    Any other model is sharded as a whole: it may call a module several times, or read its weights.
    If the mesh also has replicas, sharding is hybrid. ``knobs`` holds arguments of
    ``fully_shard``.
    """
    hybrid = ctx.mesh.size(*groups.REPLICATED) > 1
    mesh = groups.parameters(ctx, *([Dim.DP, Dim.FSDP] if hybrid else [Dim.FSDP]))
    plain = list(model.parameters())
    for block in dict.fromkeys((*parts(model), model)):
        fully_shard(block, mesh=mesh, **knobs)
    carry_outer(plain, model.parameters())
    assert isinstance(model, FSDPModule)
    return Wrapped(module=model, synchronise=model.set_requires_gradient_sync)


def replicated(model: nn.Module, ctx: RankContext) -> Wrapped:
    """Apply FSDP2's ``replicate``; the model may be split along other dimensions of the mesh."""
    mesh = groups.parameters(ctx, Dim.DP)
    plain = list(model.parameters())
    for block in dict.fromkeys((*parts(model), model)):
        replicate(block, mesh=mesh)
    carry_outer(plain, model.parameters())
    assert isinstance(model, FSDPModule)
    return Wrapped(module=model, synchronise=model.set_requires_gradient_sync)


def inputs(facts: ModelFacts, count: int) -> Tensor:
    """Return a meta tensor with the shape and dtype of the inputs of ``count`` samples."""
    dtype = getattr(torch, facts.input_dtype)
    return torch.empty((count, *facts.input_shape), dtype=dtype, device="meta")


def by_mesh(model: nn.Module, ctx: RankContext, *, reshard: bool = True) -> Wrapped:
    """Shard or replicate a model along the data parallel dimensions of the mesh.

    The model may already be split along other dimensions.
    """
    if ctx.mesh.size(Dim.FSDP) > 1:
        return sharded(model, ctx, dict(reshard_after_forward=reshard))
    if ctx.mesh.size(*groups.REPLICATED) > 1:
        return replicated(model, ctx)
    return Wrapped(module=model, synchronise=lambda last: None)


def bytes_by_mesh(
    case: CaseSpec, mesh: Mesh, blocks: Sequence[Sequence[Size]], size: int, gathers: int
) -> Traffic:
    """Return the traffic of ``by_mesh`` for blocks of these shapes.

    ``size`` is the number of bytes of an element, and ``gathers`` is the number of times that a
    step gathers each block.
    """
    n = mesh.size(Dim.FSDP)
    replicas = mesh.size(*groups.REPLICATED)
    if n > 1:
        scatter = traffic.reduce_scatter(case.backend)
        return traffic.sharded(blocks, size, n, gathers, replicas, scatter)
    total = Traffic()
    for shapes in blocks:
        total += traffic.all_reduce(float(sum(shape.numel() for shape in shapes) * size), replicas)
    return total


def module_of(mesh: Mesh, model: nn.Module) -> str:
    """Return the class name of the module that ``by_mesh`` returns."""
    name = type(model).__name__
    if mesh.size(Dim.FSDP) > 1:
        return f"FSDP{name}"
    return f"Replicate{name}" if mesh.size(*groups.REPLICATED) > 1 else name
