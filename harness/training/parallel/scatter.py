"""A reduce-scatter over all-to-all: where a backend's own one sends as much as an all-reduce."""

from __future__ import annotations

import importlib

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.nn import functional

from harness.training.transports import Codec, padded


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
