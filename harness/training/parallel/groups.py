"""Process groups of a mesh, and a reduce-scatter over all-to-all."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.nn import functional

from harness.cases import Dim, Mesh
from harness.training.context import RankContext
from harness.training.transports import Codec, padded

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


def codec_of(name: str) -> Codec:
    """A compressor's codec at its usual knobs; ValueError for one that needs its error fed back, or
    that does not encode row by row.
    """
    try:
        module = importlib.import_module(f"harness.training.compressors.{name}")
    except ImportError:
        raise ValueError(f"no compressor is called {name!r}") from None
    made = getattr(module, "Codec", None)
    if made is None or module.CLAIM != "contracts" or module.KNOBS.get("feedback", True):
        raise ValueError(f"{name} is no codec that serves without error feedback, as int8 does")
    codec: Codec = made(module.KNOBS, torch.Generator())
    return codec


def coded_bytes(codec: Codec, elements: float, ranks: int) -> float:
    """Bytes of all parts of so many elements, one part for each rank."""
    part = -(-int(elements) // ranks)
    return float(ranks * codec.bytes(padded(part, codec.unit)))


class OverAllToAll(DefaultReduceScatter):
    """Every rank is sent the parts that are its own, and adds them in rank order.

    With a ``codec`` parts travel encoded (as in ZeRO++: Wang et al., 2023).
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self.codec = codec

    def __call__(  # type: ignore[override]  # nothing is left to wait for
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """(N-1)/N of the input is sent. FSDP waits for the tensors, so ``async_op`` has no say."""
        mine, *others = self._exchanged(input_tensor.view(group.size(), -1), group)
        output_tensor.copy_(mine)
        for other in others:
            output_tensor.add_(other)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())

    def _exchanged(self, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """The values that every rank has for this one: (ranks, m)."""
        if self.codec is None:
            received = torch.empty_like(parts)
            dist.all_to_all_single(received, parts, group=group)
            return received
        m = padded(parts.shape[1], self.codec.unit)
        outgoing = self.codec.encode(functional.pad(parts.float(), (0, m - parts.shape[1])))
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=group)
        return self.codec.decode(incoming, m)[:, : parts.shape[1]].to(parts.dtype)
