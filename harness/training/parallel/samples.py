"""Along samples: replicas whose gradients are averaged, or shards of every parameter (FSDP2)."""

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
from harness.training.context import RankContext
from harness.training.optimizers import carry_outer
from harness.training.parallel import groups, traffic
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import LocalTrainer


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """A model made parallel, and how to train it: ``LocalTrainer``'s arguments."""

    module: nn.Module
    synchronise: Callable[[bool], None]
    named: Callable[[], Iterator[tuple[str, nn.Parameter]]] | None = None

    def trainer(self, ctx: RankContext, kind: type[LocalTrainer] = LocalTrainer) -> LocalTrainer:
        """The step that accumulates, goes backward and steps the optimizer."""
        return kind(
            self.module,
            ctx,
            named=self.named,
            synchronise=self.synchronise,
            whole=lambda shard: whole(shard).to(ctx.device),  # shards may be kept on the host
            placements=placements(self.module),
        )


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a shard; a collective of those that have the others."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placements(module: nn.Module) -> tuple[str, ...]:
    """How its parameters are placed, observed: ``Shard(dim=0)``, by dimension if there are more."""
    placed = (
        parameter.placements if isinstance(parameter, DTensor) else ()
        for parameter in module.parameters()
    )
    return tuple(sorted({" ".join(map(repr, p)) or "plain" for p in placed}))


def sharded(model: nn.Module, ctx: RankContext, knobs: Mapping[str, Any]) -> Wrapped:
    """fully_shard on every block, then on the root, which holds no parameter of its own.

    Over two dimensions it is hybrid: replicas of shards.
    """
    hybrid = ctx.mesh.size(*groups.REPLICATED) > 1
    mesh = groups.parameters(ctx, *([Dim.DP, Dim.FSDP] if hybrid else [Dim.FSDP]))
    plain = list(model.parameters())
    for block in (*model.children(), model):
        fully_shard(block, mesh=mesh, **knobs)
    carry_outer(plain, model.parameters())
    assert isinstance(model, FSDPModule)
    return Wrapped(module=model, synchronise=model.set_requires_gradient_sync)


def replicated(model: nn.Module, ctx: RankContext) -> Wrapped:
    """Replicas that may be cut along other dimensions (FSDP2's ``replicate``)."""
    mesh = groups.parameters(ctx, Dim.DP)
    plain = list(model.parameters())
    for block in (*model.children(), model):
        replicate(block, mesh=mesh)
    carry_outer(plain, model.parameters())
    assert isinstance(model, FSDPModule)
    return Wrapped(module=model, synchronise=model.set_requires_gradient_sync)


def inputs(facts: ModelFacts, count: int) -> Tensor:
    """A meta tensor shaped like the inputs of so many samples."""
    dtype = getattr(torch, facts.input_dtype)
    return torch.empty((count, *facts.input_shape), dtype=dtype, device="meta")


def by_mesh(model: nn.Module, ctx: RankContext, *, reshard: bool = True) -> Wrapped:
    """Distributes a model that is cut already as its mesh says."""
    if ctx.mesh.size(Dim.FSDP) > 1:
        return sharded(model, ctx, dict(reshard_after_forward=reshard))
    if ctx.mesh.size(*groups.REPLICATED) > 1:
        return replicated(model, ctx)
    return Wrapped(module=model, synchronise=lambda last: None)


def bytes_by_mesh(
    case: CaseSpec, mesh: Mesh, blocks: Sequence[Sequence[Size]], size: int, gathers: int
) -> Traffic:
    """The bytes that ``by_mesh`` sends of blocks with these parameters, gathered so many times."""
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
    """The class that ``by_mesh`` makes of a model."""
    name = type(model).__name__
    if mesh.size(Dim.FSDP) > 1:
        return f"FSDP{name}"
    return f"Replicate{name}" if mesh.size(*groups.REPLICATED) > 1 else name
