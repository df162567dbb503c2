"""How the model of a script lies on the ranks: whole on each of them, or in parts."""

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import nn

from harness.training.script import inside


def divided(roots: Sequence[nn.Module]) -> bool:
    """Whether torch says of a parameter that this rank holds a part of it."""
    placed = any(hasattr(p, "placements") for root in roots for p in inside.parameters(root))
    return placed or bool(_flattened(roots))


def shares_data(roots: Sequence[nn.Module]) -> bool:
    """Whether each rank has samples of its own, by how the first root is wrapped: by DDP, or by
    FSDP over all ranks. Those of a tensor-parallel group have the same ones.
    """
    if not roots or not dist.is_initialized():
        return False
    return any(_over_all_ranks(wrapper) for wrapper in _wrappers(roots[0]))


def _wrappers(root: nn.Module) -> Iterator[nn.Module]:
    """The root, and what it wraps: torch.compile, Fabric and others wrap what wraps the model."""
    module: object = root
    while isinstance(module, nn.Module):
        yield module
        names = ("_orig_mod", "_forward_module", "module")
        wrapped = (getattr(module, name, None) for name in names)
        module = next((inner for inner in wrapped if isinstance(inner, nn.Module)), None)


def _over_all_ranks(wrapper: nn.Module) -> bool:
    """Whether it exchanges gradients among all ranks, so that these can have samples of their own.
    DeepSpeed's engine says among how many it does.
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


def bytes_of(roots: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> int:
    """Bytes of whole parameters: of flattened ones this rank holds a part, as long as others'."""
    flattened = _flattened(roots)
    ours = {id(p) for module in flattened for p in inside.parameters(module)}
    many = max((module.process_group.size() for module in flattened), default=1)
    return sum(p.numel() * p.element_size() * (many if id(p) in ours else 1) for p in parameters)


def _flattened(roots: Sequence[nn.Module]) -> list[Any]:
    """Modules of FSDP's first kind, whose parts of parameters look like parameters."""
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
    """None for a script that has not loaded it."""
    return sys.modules.get("torch.distributed.fsdp")
