"""How encoded gradients travel, with what was not sent kept for the next step.

A codec works on rows, (rows, m) fp32 to (rows, bytes) uint8, so that the parts for all ranks are
encoded at once. What it writes is what is sent: the wire format is the codec's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from harness.base.documents import Json
from harness.training.context import RankContext
from harness.training.hooks import ErrorFeedback, Hook, Promise, all_gather, done
from harness.training.observe.laps import lap

Knobs: TypeAlias = Mapping[str, Json]


class Codec(Protocol):
    """A lossy format. ``unit``: rows are of a multiple of so many elements."""

    unit: int

    def bytes(self, m: int) -> int:
        """Bytes of an encoded row of m elements."""

    def encode(self, x: Tensor) -> Tensor:
        """(rows, m) fp32 -> (rows, bytes(m)) uint8."""

    def decode(self, message: Tensor, m: int) -> Tensor:
        """(rows, bytes(m)) uint8 -> (rows, m) fp32."""


#: Makes a codec of a case: its knobs, and a source of randomness of this rank alone.
Make: TypeAlias = Callable[[Knobs, torch.Generator], Codec]
Built: TypeAlias = tuple[Callable[..., Promise], Callable[..., Hook]]


def generator(ctx: RankContext) -> torch.Generator:
    """Random numbers of this rank; torch's global ones, of which dropout draws, stay alone."""
    drawing = torch.Generator(device=ctx.device)
    return drawing.manual_seed(ctx.case.seed * 1_000_003 + ctx.rank + 1)


def padded(elements: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return -(-elements // unit) * unit


def total(shapes: Sequence[torch.Size]) -> int:
    return sum(shape.numel() for shape in shapes)


def mean(parts: Tensor) -> Tensor:
    """The mean of rows, added in order: the same bits on every rank."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total / len(parts)


def gathered(
    make: Make, formula: str, finish: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Built:
    """``promise`` and ``build``: everybody's message to everybody, decoded and averaged.

    ``finish`` makes of the mean what is trained on.
    """

    def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
        codec = make(knobs, torch.Generator())
        message = float(codec.bytes(padded(total(shapes), codec.unit)))
        return Promise(
            payload_bytes={"all_gather": message}, sent_bytes=(world - 1) * message, formula=formula
        )

    def build(ctx: RankContext, knobs: Knobs) -> Gathered:
        return Gathered(ctx, make(knobs, generator(ctx)), bool(knobs.get("feedback")), finish)

    return promise, build


class Coded:
    """A communication hook with a codec; what it owes is kept if there is ``feedback``."""

    def __init__(self, ctx: RankContext, codec: Codec, feedback: bool) -> None:
        self.ctx = ctx
        self.codec = codec
        self.feedback = ErrorFeedback() if feedback else None

    def wanted(self, bucket: dist.GradBucket, unit: int) -> Tensor:
        """The gradients of a bucket, and what is owed of them: fp32 (n padded to ``unit``,)."""
        flat = bucket.buffer().float()
        if self.feedback is not None:
            pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
            parts = [self.feedback.add(p, g.float()) for p, g in pairs]
            flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        short = padded(flat.numel(), unit) - flat.numel()
        return functional.pad(flat, (0, short)) if short else flat  # a pad of 0 copies all

    def keep(self, bucket: dist.GradBucket, wanted: Tensor, sent: Tensor) -> None:
        """Owe what was wanted and not sent."""
        if self.feedback is None:
            return
        sizes = [tensor.numel() for tensor in bucket.parameters()]
        sizes.append(len(wanted) - sum(sizes))  # the padding
        parts = zip(bucket.parameters(), wanted.split(sizes), sent.split(sizes), strict=False)
        for parameter, want, received in parts:
            self.feedback.keep(parameter, want, received)


class Gathered(Coded):
    """Everybody's message to everybody."""

    def __init__(
        self, ctx: RankContext, codec: Codec, feedback: bool, finish: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(ctx, codec, feedback)
        self.finish = finish

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer()
        codec = self.codec
        world = self.ctx.world_size
        wanted = self.wanted(bucket, codec.unit)
        n = len(wanted)
        with lap("encode"):
            message = codec.encode(wanted[None])
        decoded: Tensor | None = None
        if self.feedback is not None:
            decoded = codec.decode(message, n)[0]
            self.keep(bucket, wanted, decoded)
        every = all_gather(message[0], world).view(world, 1, -1)
        with lap("decode"):
            summed = torch.zeros_like(wanted)
            for rank, part in enumerate(every):  # one at a time: all of them need N times n
                mine = decoded if rank == self.ctx.rank else None
                summed += codec.decode(part, n)[0] if mine is None else mine
            return done(flat.copy_(self.finish(summed.div_(world))[: flat.numel()]))


def two_phase(make: Make, formula: str, rows: Callable[[Tensor], Tensor] = mean) -> Built:
    """``promise`` and ``build``: each rank adds one part of all gradients, and hands it on.

    ``rows`` makes one row of what all ranks sent of it.
    """

    def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
        codec = make(knobs, torch.Generator())
        part = float(codec.bytes(padded(math.ceil(total(shapes) / world), codec.unit)))
        return Promise(
            payload_bytes={"all_to_all": part * world, "all_gather": part},
            sent_bytes=2 * (world - 1) * part,
            formula=formula,
        )

    def build(ctx: RankContext, knobs: Knobs) -> TwoPhase:
        return TwoPhase(ctx, make(knobs, generator(ctx)), bool(knobs.get("feedback")), rows)

    return promise, build


class TwoPhase(Coded):
    """All-to-all of encoded parts, a sum in fp32, and an all-gather of the encoded sums.

    With feedback both errors are kept: this rank's, and that of the part that it adds.
    """

    def __init__(
        self, ctx: RankContext, codec: Codec, feedback: bool, rows: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(ctx, codec, feedback)
        self.rows = rows
        self.of_sums: dict[int, Tensor] = {}  # by the bucket's size: its part is this rank's

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer()
        codec = self.codec
        world = self.ctx.world_size
        m = padded(math.ceil(flat.numel() / world), codec.unit)
        wanted = self.wanted(bucket, m * world)
        with lap("encode"):
            outgoing = codec.encode(wanted.view(world, m))
        if self.feedback is not None:
            self.keep(bucket, wanted, codec.decode(outgoing, m).flatten())
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        with lap("add"):
            part = self.rows(codec.decode(incoming, m))[None]
            if self.feedback is not None:
                part = part + self.of_sums.get(len(wanted), 0.0)
            message = codec.encode(part)
            if self.feedback is not None:
                self.of_sums[len(wanted)] = part - codec.decode(message, m)
        every = all_gather(message[0], world)
        with lap("decode"):
            return done(flat.copy_(codec.decode(every, m).flatten()[: flat.numel()]))


#: By bits of a value: a word of as many bytes as values fill one byte, the factor that brings them
#: together in its highest byte (no two terms meet in a bit), and how far up that is.
WORDS = {
    1: (torch.int64, 0x8040_2010_0804_0201 - (1 << 64), 56),
    2: (torch.int32, 0x4010_0401, 24),
    4: (torch.int16, 0x1001, 8),
}


def packed(values: Tensor, bits: int) -> Tensor:
    """uint8 (rows, m), each below 2^bits -> uint8 (rows, m bits / 8), the first value highest.

    One product a word instead of a shift a value; of little-endian hosts, as all of torch's are.
    """
    word, together, shift = WORDS[bits]
    return (values.view(word) * together).bitwise_right_shift_(shift).to(torch.uint8)


def unpacked(message: Tensor, table: Tensor) -> Tensor:
    """The inverse of ``packed``, looked up: uint8 (rows, b) -> (rows, b x values a byte)."""
    rows = table.to(message.device).index_select(0, message.flatten().int())
    return rows.view(len(message), -1)


def lookup(bits: int, meaning: Sequence[float]) -> Tensor:
    """The values that each byte stands for, (256, values a byte), each value by its ``meaning``."""
    per_byte = 8 // bits
    shifts = [bits * (per_byte - 1 - i) for i in range(per_byte)]
    rows = [[meaning[(byte >> shift) & (2**bits - 1)] for shift in shifts] for byte in range(256)]
    return torch.tensor(rows, dtype=torch.float32)


def largest(blocks: Tensor) -> Tensor:
    """The largest magnitude of each block, (rows, blocks, unit) -> (rows, blocks), without a copy
    of them all.
    """
    return torch.maximum(blocks.amax(2), -blocks.amin(2))


def with_scales(values: Tensor, scales: Tensor) -> Tensor:
    """One message a row: uint8 (rows, a), and fp32 (rows, b) as bytes."""
    return torch.cat((values, scales.contiguous().view(torch.uint8)), 1)


def scales_of(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The inverse of ``with_scales``."""
    split = message.shape[1] - 4 * count
    scales = message[:, split:].flatten().clone()  # aligned
    return message[:, :split], scales.view(torch.float32).view(len(message), count)
