"""Process groups of a mesh, and a reduce-scatter that is made of an all-to-all."""

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

#: Dimensions along which all parameters are replicated, except those of experts.
REPLICATED = (Dim.DP, Dim.EP, Dim.CP)

#: The axes of a DeviceMesh. Each axis has a name, and joins these dimensions of the case's mesh.
Axes = tuple[tuple[Dim, tuple[Dim, ...]], ...]


@functools.cache
def _made(device: str, sizes: tuple[tuple[Dim, int], ...], axes: Axes) -> DeviceMesh:
    """Return a DeviceMesh whose axes join dimensions of the mesh. This is a collective."""
    given = Mesh(dict(sizes))
    order = [dim for dim, _ in sizes]
    ranks = torch.arange(given.ranks).view([size for _, size in sizes])
    ranks = ranks.permute([order.index(dim) for _, dims in axes for dim in dims if dim in order])
    ranks = ranks.reshape([given.size(*dims) for _, dims in axes])
    # Without ``device``, torch takes the GPU that it was built for, even if the model is on a CPU.
    return DeviceMesh(device, ranks, mesh_dim_names=tuple(str(name) for name, _ in axes))


def _axes(mesh: Mesh, joined: Sequence[Dim], wanted: Sequence[Dim]) -> Axes:
    """Return one axis per dimension, except that all ``joined`` dimensions form one axis.

    This axis is named after the first of them. Axes are in the order of ``Dim`` and not of the
    mesh, because FSDP2 uses the first axis for replicas.
    """
    named: dict[Dim, list[Dim]] = {}
    for dim in (*mesh.sizes, *(d for d in wanted if d not in mesh.sizes)):
        named.setdefault(joined[0] if dim in joined else dim, []).append(dim)
    order = list(Dim)
    return tuple((name, tuple(named[name])) for name in sorted(named, key=order.index))


def parameters(ctx: RankContext, *dims: Dim) -> DeviceMesh:
    """Return the DeviceMesh along these dimensions by which parameters are placed.

    ``dp`` stands for all dimensions in ``REPLICATED``.
    """
    axes = _axes(ctx.mesh, REPLICATED, dims)
    whole = _made(ctx.device.type, tuple(ctx.mesh.sizes.items()), axes)
    names = tuple(str(name) for name, _ in axes if name in dims)
    return whole if len(names) == len(axes) else whole[names]


def group(ctx: RankContext, dim: Dim) -> dist.ProcessGroup:
    """Return the process group of this rank and the ranks that differ along this dimension only."""
    axes = _axes(ctx.mesh, (), [dim])
    return _made(ctx.device.type, tuple(ctx.mesh.sizes.items()), axes).get_group(str(dim))


def codec_of(name: str) -> Codec:
    """Return the codec of a compressor with its default knobs.

    Raise ValueError if there is no such compressor, or if it needs error feedback or has no codec
    that encodes row by row.
    """
    try:
        module = importlib.import_module(f"harness.training.compressors.{name}")
    except ImportError:
        raise ValueError(f"there is no compressor {name!r}") from None
    made = getattr(module, "Codec", None)
    if made is None or module.CLAIM != "contracts" or module.KNOBS.get("feedback", True):
        raise ValueError(
            f"compressor {name!r} cannot encode gradient shards; expected a codec that needs no"
            " error feedback, such as int8"
        )
    codec: Codec = made(module.KNOBS, torch.Generator())
    return codec


def coded_bytes(codec: Codec, elements: float, ranks: int) -> float:
    """Return the encoded bytes of ``elements`` elements that are divided into a part per rank."""
    part = -(-int(elements) // ranks)
    return float(ranks * codec.bytes(padded(part, codec.unit)))


class OverAllToAll(DefaultReduceScatter):
    """A reduce-scatter by an all-to-all; each rank adds the received parts in rank order.

    If there is a ``codec``, it encodes the parts (as in ZeRO++, Wang et al., 2023).
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self.codec = codec

    def __call__(  # type: ignore[override]  # synchronous, so it returns no work to wait for
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Reduce-scatter the input, of which (N-1)/N is sent.

        ``async_op`` has no effect, because FSDP2 waits on its stream and not for a work object.
        """
        mine, *others = self._exchanged(input_tensor.view(group.size(), -1), group)
        output_tensor.copy_(mine)
        for other in others:
            output_tensor.add_(other)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())

    def _exchanged(self, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the parts that all ranks sent to this rank, shape (ranks, m)."""
        if self.codec is None:
            received = torch.empty_like(parts)
            dist.all_to_all_single(received, parts, group=group)
            return received
        m = padded(parts.shape[1], self.codec.unit)
        outgoing = self.codec.encode(functional.pad(parts.float(), (0, m - parts.shape[1])))
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=group)
        return self.codec.decode(incoming, m)[:, : parts.shape[1]].to(parts.dtype)
