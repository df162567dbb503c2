"""What compressors share: closed forms, error feedback and transports of encoded gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from harness.base.documents import Json
from harness.training.context import RankContext
from harness.training.observe.laps import lap

#: A DDP communication hook without its state: a bucket in, the averaged flat gradient out.
Hook: TypeAlias = Callable[[dist.GradBucket], torch.futures.Future[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Per rank and step: input bytes of each collective, and bytes sent in closed form."""

    payload_bytes: Mapping[str, float]
    sent_bytes: float
    formula: str


def done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    """A finished future: synchronous hooks keep the order of collectives equal on all ranks."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def cast(dtype: torch.dtype) -> tuple[Callable[..., Promise], Callable[..., Hook]]:
    """``promise`` and ``build`` of a compressor that all-reduces in ``dtype``.

    Divide, cast, all-reduce, cast back; overlaps with backward like DDP's own all-reduce.
    """

    def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
        payload = float(sum(shape.numel() for shape in shapes) * dtype.itemsize)
        return Promise(
            payload_bytes={"all_reduce": payload},
            sent_bytes=2 * (world - 1) / world * payload,
            formula=f"2 (N-1)/N {dtype.itemsize} n",
        )

    def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
        def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            flat = bucket.buffer()
            small = flat.div_(ctx.world_size).to(dtype)  # ``back`` writes over it anyway
            future = dist.all_reduce(small, async_op=True).get_future()

            def back(f: torch.futures.Future[list[Tensor]]) -> Tensor:
                return flat.copy_(f.value()[0])

            averaged: torch.futures.Future[Tensor] = future.then(back)
            return averaged

        return hook

    return promise, build


def all_gather(message: Tensor, world: int) -> Tensor:
    """Every rank's message, shape (world, *message.shape)."""
    gathered = message.new_empty((world, *message.shape))
    # Its older name, all_gather_into_tensor, is deprecated from torch 2.13 on.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered.flatten(0, 1) if message.dim() > 1 else gathered.flatten(), message)
    return gathered


def state_of(hook: object, names: Mapping[Tensor, str]) -> dict[str, Any]:
    """The state that a hook keeps from step to step: tensors by parameter, generators, its
    ``step``.
    """
    state: dict[str, Any] = {}
    for name, value in vars(hook).items():
        if isinstance(value, ErrorFeedback):
            state[name] = state_of(value, names)
        elif isinstance(value, torch.Generator):
            state[name] = value.get_state()
        elif isinstance(value, dict):
            kept = {names.get(key, key): entry for key, entry in value.items()}
            state[name] = {key: entry for key, entry in kept.items() if isinstance(entry, Tensor)}
        elif name == "step":
            state[name] = value
        elif name == "inner" or hasattr(value, "generator"):
            state[name] = state_of(value, names)
    return state


def restore(hook: object, state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """The inverse of ``state_of``, into a fresh hook."""
    for name, value in state.items():
        current = getattr(hook, name)
        if isinstance(current, torch.Generator):
            current.set_state(value)
        elif isinstance(current, dict):
            current |= {parameters.get(key, key): entry for key, entry in value.items()}
        elif isinstance(value, dict):
            restore(current, value, parameters)
        else:
            setattr(hook, name, value)


class Late:
    """A hook that all-reduces whole gradients until step ``start``, and then does as ``inner``."""

    def __init__(self, inner: Hook, start: int, world_size: int) -> None:
        self.inner = inner
        self.start = start
        self.world_size = world_size
        self.step = 0

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        whole = self.step < self.start
        self.step += bucket.is_last()
        if not whole:
            return self.inner(bucket)
        flat = bucket.buffer().div_(self.world_size)
        reduced = dist.all_reduce(flat, async_op=True).get_future()
        heard = getattr(self.inner, "heard", None)  # of whole gradients, by those that need them
        parameters = bucket.parameters()

        def mean(f: torch.futures.Future[list[Tensor]]) -> Tensor:
            if heard is not None:
                heard(parameters, f.value()[0])
            return f.value()[0]

        first: torch.futures.Future[Tensor] = reduced.then(mean)
        return first


class ErrorFeedback:
    """The gradient that was not sent, per parameter (DDP rebuilds buckets after the first step)."""

    def __init__(self) -> None:
        self.owed: dict[Tensor, Tensor] = {}

    def add(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """The gradient plus what is still owed, flat; a new tensor."""
        owed = self.owed.get(parameter)
        flat = gradient.flatten()
        return flat.clone() if owed is None else flat + owed

    def take(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Hands out the sum, in the memory of what was owed: whoever takes it says what is owed
        next.
        """
        owed = self.owed.get(parameter)
        return gradient.flatten().clone() if owed is None else owed.add_(gradient.flatten())

    def keep(self, parameter: Tensor, wanted: Tensor, sent: Tensor) -> None:
        """Remember the difference for the next step."""
        self.owed[parameter] = wanted - sent

    def owe(self, parameter: Tensor, difference: Tensor) -> None:
        """Remember this for the next step."""
        self.owed[parameter] = difference


#: Indices of the entries to send of one flat parameter, at most so many; fewer where fewer are due.
Choose: TypeAlias = Callable[[Tensor, int], Tensor]


def kept(elements: int, rho: float) -> int:
    """Entries sent of a parameter: fixed, so that no sizes need exchanging."""
    return max(1, int(rho * elements))


def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
    """8 bytes a kept entry, to every other rank."""
    if sum(shape.numel() for shape in shapes) >= 2**31:
        raise ValueError("int32 indices address 2^31 elements at most")
    if not 0 < knobs["rho"] <= 1:
        raise ValueError(f"rho = {knobs['rho']}: a share above 0, at most 1")
    message = 8.0 * sum(kept(shape.numel(), knobs["rho"]) for shape in shapes)
    return Promise(
        payload_bytes={"all_gather": message}, sent_bytes=(world - 1) * message, formula="(N-1) 8 k"
    )


class Sparse:
    """A hook: values and int32 indices of all parameters of a bucket travel in one message.

    Where fewer entries are chosen than there is room for, the rest is zeros. ``used`` is the share
    of the room that was.
    """

    def __init__(self, ctx: RankContext, rho: float, choose: Choose, feedback: bool) -> None:
        self.world = ctx.world_size
        self.rho = rho
        self.choose = choose
        self.feedback = ErrorFeedback() if feedback else None
        self.used = 0.0

    def wanted(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """The values to send of a parameter, flat."""
        return (
            gradient.flatten() if self.feedback is None else self.feedback.add(parameter, gradient)
        )

    def sent(self, parameter: Tensor, wanted: Tensor, index: Tensor) -> None:
        """Owe all that is not at these places."""
        if self.feedback is not None:
            self.feedback.owe(parameter, wanted.index_fill(0, index, 0.0))

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer()
        indices = []
        values = []
        offset = room = used = 0
        with lap("encode"):
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                wanted = self.wanted(parameter, gradient)
                k = kept(wanted.numel(), self.rho)
                index = self.choose(wanted, k)
                value = wanted[index].float()
                spare = k - len(index)
                self.sent(parameter, wanted, index)
                if spare:
                    index = torch.cat((index, index.new_zeros(spare)))
                    value = torch.cat((value, value.new_zeros(spare)))
                indices.append((index + offset).to(torch.int32))
                values.append(value.view(torch.int32))
                offset = offset + wanted.numel()
                room = room + k
                used = used + k - spare
            message = torch.cat((*indices, *values))
        self.used = used / room
        messages = all_gather(message, self.world).view(self.world, 2, -1)
        with lap("decode"):
            flat.zero_()
            for part in messages:
                # Rank by rank, so that all have the same bits; what is spare adds nothing.
                flat.index_add_(0, part[0].long(), part[1].view(torch.float32).to(flat.dtype))
            return done(flat.div_(self.world))


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
