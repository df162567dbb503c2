"""A case's mesh as torch's: DeviceMesh and process groups, made once in a process."""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.cases import Dim, Mesh
from harness.training.context import RankContext

#: Along these all parameters of a rank are replicated, unless they are experts'.
REPLICATED = (Dim.DP, Dim.EP, Dim.CP)

#: Axes of a DeviceMesh: a name, and the dimensions that it joins.
Axes = tuple[tuple[Dim, tuple[Dim, ...]], ...]


@functools.cache
def _made(device: str, sizes: tuple[tuple[Dim, int], ...], axes: Axes) -> DeviceMesh:
    """The mesh with its dimensions joined to these axes. A collective of all ranks."""
    given = Mesh(dict(sizes))
    order = [dim for dim, _ in sizes]
    ranks = torch.arange(given.ranks).view([size for _, size in sizes])
    ranks = ranks.permute([order.index(dim) for _, dims in axes for dim in dims if dim in order])
    ranks = ranks.reshape([given.size(*dims) for _, dims in axes])
    # torch's own choice is the device that it was compiled for, wherever the model is.
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(str(name) for name, _ in axes))


def _axes(mesh: Mesh, joined: Sequence[Dim], wanted: Sequence[Dim]) -> Axes:
    """Each dimension an axis, but for those that are joined under the name of their first.

    Axes are in the order of ``Dim``, whatever the mesh's: FSDP takes the first for replicas.
    """
    named: dict[Dim, list[Dim]] = {}
    for dim in (*mesh.sizes, *(d for d in wanted if d not in mesh.sizes)):
        named.setdefault(joined[0] if dim in joined else dim, []).append(dim)
    order = list(Dim)
    return tuple((name, tuple(named[name])) for name in sorted(named, key=order.index))


def parameters(ctx: RankContext, *dims: Dim) -> DeviceMesh:
    """Ranks by what they hold of parameters, along these dimensions (``dp``: ``REPLICATED``)."""
    axes = _axes(ctx.mesh, REPLICATED, dims)
    whole = _made(ctx.device.type, tuple(ctx.mesh.sizes.items()), axes)
    names = tuple(str(name) for name, _ in axes if name in dims)
    return whole if len(names) == len(axes) else whole[names]


def group(ctx: RankContext, dim: Dim) -> dist.ProcessGroup:
    """The ranks that differ along this dimension only."""
    axes = _axes(ctx.mesh, (), [dim])
    return _made(ctx.device.type, tuple(ctx.mesh.sizes.items()), axes).get_group(str(dim))
