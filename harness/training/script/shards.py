"""Find out whether a script's model is replicated on all ranks or divided among them."""

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import nn

from harness.training.script import inside


def divided(roots: Sequence[nn.Module]) -> bool:
    """Return whether this rank holds a shard of any parameter, according to types of torch."""
    placed = any(hasattr(p, "placements") for root in roots for p in inside.parameters(root))
    return placed or bool(_flattened(roots)) or bool(_fully_sharded(roots))


def reshard(roots: Sequence[nn.Module]) -> None:
    """Free the whole weights that FSDP2 holds between steps, so that its modules hold shards.

    A forward pass without a backward pass leaves whole weights, which have other parameters.
    """
    for module in _fully_sharded(roots):
        module.reshard()


def _fully_sharded(roots: Sequence[nn.Module]) -> list[Any]:
    """Return the modules to which ``fully_shard`` (FSDP2) was applied."""
    fsdp = _fsdp()
    if fsdp is None:
        return []
    return [m for root in roots for m in inside.modules(root) if isinstance(m, fsdp.FSDPModule)]


def shares_data(roots: Sequence[nn.Module]) -> bool:
    """Return whether each rank has different samples, according to wrappers of the first root.

    This is so if a wrapper exchanges gradients among all ranks (DDP, FSDP). The ranks of a
    tensor-parallel group, in contrast, have the same samples.
    """
    if not roots or not dist.is_initialized():
        return False
    return any(_over_all_ranks(wrapper) for wrapper in _wrappers(roots[0]))


def _wrappers(root: nn.Module) -> Iterator[nn.Module]:
    """Yield the root and the modules that it wraps, one inside the other.

    For example, torch.compile or Fabric wraps DDP, which wraps the model.
    """
    module: object = root
    while isinstance(module, nn.Module):
        yield module
        names = ("_orig_mod", "_forward_module", "module")
        wrapped = (getattr(module, name, None) for name in names)
        module = next((inner for inner in wrapped if isinstance(inner, nn.Module)), None)


def _over_all_ranks(wrapper: nn.Module) -> bool:
    """Return whether a wrapper exchanges gradients among all ranks.

    DeepSpeed's engine stores the number of the ranks that exchange gradients as ``dp_world_size``.
    """
    world_size = dist.get_world_size()
    fsdp = _fsdp()
    if isinstance(wrapper, nn.parallel.DistributedDataParallel):
        return bool(wrapper.process_group.size() == world_size)
    if getattr(wrapper, "dp_world_size", None) == world_size:
        return True
    if fsdp is None:
        return False
    if isinstance(wrapper, fsdp.FullyShardedDataParallel):
        return True
    meshes = [
        mesh
        for parameter in inside.parameters(wrapper)
        if (mesh := getattr(parameter, "device_mesh", None)) is not None
    ]
    flat = all(mesh.ndim == 1 and mesh.size() == world_size for mesh in meshes)
    return isinstance(wrapper, fsdp.FSDPModule) and bool(meshes) and flat


def replaced(wrappers: Sequence[nn.Module]) -> bool:
    """Return whether a DDP module trains other parameters than it was made with."""
    return any(
        {id(p) for p in inside.parameters(wrapper) if p.requires_grad}
        - {id(p) for p in getattr(wrapper, "_module_parameters", inside.parameters(wrapper))}
        for wrapper in wrappers
        if isinstance(wrapper, nn.parallel.DistributedDataParallel)
    )


def bytes_of(roots: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> int:
    """Return the bytes of the complete parameters.

    This rank holds only a shard of a parameter that FSDP1 has flattened. All shards have the same
    size, so the size of a shard is multiplied by the number of ranks.
    """
    flattened = _flattened(roots)
    ours = {id(p) for module in flattened for p in inside.parameters(module)}
    many = max((module.process_group.size() for module in flattened), default=1)
    return sum(p.numel() * p.element_size() * (many if id(p) in ours else 1) for p in parameters)


def _flattened(roots: Sequence[nn.Module]) -> list[Any]:
    """Return the FSDP1 modules that shard parameters. The shards are ordinary parameters."""
    fsdp = _fsdp()
    if fsdp is None:
        return []
    return [
        module
        for root in roots
        for module in inside.modules(root)
        if isinstance(module, fsdp.FullyShardedDataParallel)
        and module.sharding_strategy is not fsdp.ShardingStrategy.NO_SHARD
    ]


def _fsdp() -> ModuleType | None:
    """Return torch's FSDP module, or None if the script has not imported it."""
    return sys.modules.get("torch.distributed.fsdp")
