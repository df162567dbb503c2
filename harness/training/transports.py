"""Code that compressors share: closed forms, error feedback, transports of encoded gradients."""

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

#: A DDP communication hook without its state argument: it takes a bucket and returns a future of
#: the averaged flat gradient.
Hook: TypeAlias = Callable[[dist.GradBucket], torch.futures.Future[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The bytes that one rank communicates in one step.

    ``payload_bytes`` maps each kind of collective to the bytes of its input, and ``sent_bytes`` is
    the number of bytes sent. ``formula`` is the closed form of ``sent_bytes`` for N ranks and n
    gradient elements.
    """

    payload_bytes: Mapping[str, float]
    sent_bytes: float
    formula: str


def done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    """Return a finished future, for hooks that wait for their collectives.

    If hooks wait, all ranks run their collectives in the same order.
    """
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def cast(dtype: torch.dtype) -> tuple[Callable[..., Promise], Callable[..., Hook]]:
    """Return ``promise`` and ``build`` of a compressor that all-reduces in ``dtype``.

    The compressor's hook divides the gradients by the world size, casts, all-reduces, and casts
    back. It overlaps with backward, like DDP's default all-reduce.
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
            # In-place division is safe because ``back`` overwrites the buffer.
            small = flat.div_(ctx.world_size).to(dtype)
            future = dist.all_reduce(small, async_op=True).get_future()

            def back(f: torch.futures.Future[list[Tensor]]) -> Tensor:
                return flat.copy_(f.value()[0])

            averaged: torch.futures.Future[Tensor] = future.then(back)
            return averaged

        return hook

    return promise, build


def all_gather(message: Tensor, world: int) -> Tensor:
    """Return the messages of all ranks, shape (world, *message.shape). This is a collective."""
    gathered = message.new_empty((world, *message.shape))
    # torch 2.13 renames all_gather_into_tensor to all_gather_single and deprecates the old name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered.flatten(0, 1) if message.dim() > 1 else gathered.flatten(), message)
    return gathered


def state_of(hook: object, names: Mapping[Tensor, str]) -> dict[str, Any]:
    """Return the state that a hook keeps between steps, for a checkpoint.

    The state consists of tensors by parameter name, states of random generators, the counter
    ``step``, and the state of an inner hook. ``names`` maps parameters to their names.
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
    """Restore the result of ``state_of`` in a new hook; ``parameters`` maps names to parameters."""
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
    """A hook that all-reduces uncompressed gradients until step ``start``, then calls ``inner``."""

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
        # An inner hook may define ``heard`` to receive the averaged gradients of the dense steps.
        heard = getattr(self.inner, "heard", None)
        parameters = bucket.parameters()

        def mean(f: torch.futures.Future[list[Tensor]]) -> Tensor:
            if heard is not None:
                heard(parameters, f.value()[0])
            return f.value()[0]

        first: torch.futures.Future[Tensor] = reduced.then(mean)
        return first


class ErrorFeedback:
    """The residual of each gradient: the part that was not sent and is added to the next gradient.

    ``owed`` holds the residuals by parameter, because DDP rebuilds its buckets after the first
    step.
    """

    def __init__(self) -> None:
        self.owed: dict[Tensor, Tensor] = {}

    def add(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient plus the parameter's residual, as a new flat tensor."""
        owed = self.owed.get(parameter)
        flat = gradient.flatten()
        return flat.clone() if owed is None else flat + owed

    def take(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient plus the parameter's residual, computed in the residual's memory.

        The residual is overwritten, so the caller must then call ``keep`` or ``owe``.
        """
        owed = self.owed.get(parameter)
        return gradient.flatten().clone() if owed is None else owed.add_(gradient.flatten())

    def keep(self, parameter: Tensor, wanted: Tensor, sent: Tensor) -> None:
        """Store the difference between ``wanted`` and ``sent`` as the residual."""
        self.owed[parameter] = wanted - sent

    def owe(self, parameter: Tensor, difference: Tensor) -> None:
        """Store ``difference`` as the residual of the parameter."""
        self.owed[parameter] = difference


#: A function that takes one flat gradient and a number k, and returns the indices of at most k
#: entries that will be sent.
Choose: TypeAlias = Callable[[Tensor, int], Tensor]


def kept(elements: int, rho: float) -> int:
    """Return the number of entries of a parameter that are sent.

    The number is the same in every step, so ranks do not need to exchange sizes.
    """
    return max(1, int(rho * elements))


def promise(shapes: Sequence[torch.Size], world: int, knobs: Knobs) -> Promise:
    """Return the bytes of a sparse exchange: each entry sends 8 bytes to each of the other ranks.

    Raise ValueError if the fraction ``rho`` is not in (0, 1] or the model is too large.
    """
    if sum(shape.numel() for shape in shapes) >= 2**31:
        raise ValueError("the model has 2^31 or more elements; int32 indices cannot address them")
    if not 0 < knobs["rho"] <= 1:
        raise ValueError(f"rho is {knobs['rho']}; expected a share above 0 and at most 1")
    message = 8.0 * sum(kept(shape.numel(), knobs["rho"]) for shape in shapes)
    return Promise(
        payload_bytes={"all_gather": message}, sent_bytes=(world - 1) * message, formula="(N-1) 8 k"
    )


class Sparse:
    """A hook that sends the chosen entries of a bucket's parameters in one message.

    The message holds int32 indices and fp32 values and has a fixed size. If fewer entries are
    chosen than fit, the rest of the message is zeros. ``used`` is the fraction of the message that
    the chosen entries of the last bucket filled.
    """

    def __init__(self, ctx: RankContext, rho: float, choose: Choose, feedback: bool) -> None:
        self.world = ctx.world_size
        self.rho = rho
        self.choose = choose
        self.feedback = ErrorFeedback() if feedback else None
        self.used = 0.0

    def wanted(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the flat gradient, plus the parameter's residual if there is error feedback."""
        return (
            gradient.flatten() if self.feedback is None else self.feedback.add(parameter, gradient)
        )

    def sent(self, parameter: Tensor, wanted: Tensor, index: Tensor) -> None:
        """Store the entries of ``wanted`` that are not at ``index`` as the residual."""
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
                # Messages are added in rank order, so all ranks get the same bits. Padding is zero.
                flat.index_add_(0, part[0].long(), part[1].view(torch.float32).to(flat.dtype))
            return done(flat.div_(self.world))


Knobs: TypeAlias = Mapping[str, Json]


class Codec(Protocol):
    """A lossy format of gradients.

    The number of elements of a row must be a multiple of ``unit``.
    """

    unit: int

    def bytes(self, m: int) -> int:
        """Return the bytes of an encoded row of m elements."""

    def encode(self, x: Tensor) -> Tensor:
        """Encode fp32 of shape (rows, m) as uint8 of shape (rows, bytes(m))."""

    def decode(self, message: Tensor, m: int) -> Tensor:
        """Decode uint8 of shape (rows, bytes(m)) to fp32 of shape (rows, m)."""


#: A function that makes the codec of a case from the knobs and this rank's random generator.
Make: TypeAlias = Callable[[Knobs, torch.Generator], Codec]
Built: TypeAlias = tuple[Callable[..., Promise], Callable[..., Hook]]


def generator(ctx: RankContext) -> torch.Generator:
    """Return a random generator of this rank.

    Torch's global generator, which dropout uses, does not change.
    """
    drawing = torch.Generator(device=ctx.device)
    return drawing.manual_seed(ctx.case.seed * 1_000_003 + ctx.rank + 1)


def padded(elements: int, unit: int) -> int:
    """Return ``elements``, rounded up to a multiple of ``unit``."""
    return -(-elements // unit) * unit


def total(shapes: Sequence[torch.Size]) -> int:
    """Return the number of elements of all shapes."""
    return sum(shape.numel() for shape in shapes)


def mean(parts: Tensor) -> Tensor:
    """Return the mean of rows. They are added in order, so all ranks get the same bits."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total / len(parts)


def gathered(
    make: Make, formula: str, finish: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Built:
    """Return ``promise`` and ``build`` of a compressor that all-gathers encoded gradients.

    Every rank decodes and averages all messages. ``finish`` maps the mean to the gradient that the
    optimizer receives.
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
    """The base of communication hooks with a codec, with error feedback if ``feedback`` is set."""

    def __init__(self, ctx: RankContext, codec: Codec, feedback: bool) -> None:
        self.ctx = ctx
        self.codec = codec
        self.feedback = ErrorFeedback() if feedback else None

    def wanted(self, bucket: dist.GradBucket, unit: int) -> Tensor:
        """Return the gradients of a bucket, plus the residuals if there is error feedback.

        The result is flat fp32, padded with zeros to a multiple of ``unit``.
        """
        flat = bucket.buffer().float()
        if self.feedback is not None:
            pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
            parts = [self.feedback.add(p, g.float()) for p, g in pairs]
            flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        short = padded(flat.numel(), unit) - flat.numel()
        return functional.pad(flat, (0, short)) if short else flat  # a pad of 0 would copy ``flat``

    def keep(self, bucket: dist.GradBucket, wanted: Tensor, sent: Tensor) -> None:
        """Store the difference between ``wanted`` and ``sent`` as residuals by parameter."""
        if self.feedback is None:
            return
        sizes = [tensor.numel() for tensor in bucket.parameters()]
        sizes.append(len(wanted) - sum(sizes))  # the padding; zip drops it
        parts = zip(bucket.parameters(), wanted.split(sizes), sent.split(sizes), strict=False)
        for parameter, want, received in parts:
            self.feedback.keep(parameter, want, received)


class Gathered(Coded):
    """A hook that all-gathers the encoded gradients of all ranks and averages them."""

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
            for rank, part in enumerate(every):  # one by one, to save memory
                mine = decoded if rank == self.ctx.rank else None
                summed += codec.decode(part, n)[0] if mine is None else mine
            return done(flat.copy_(self.finish(summed.div_(world))[: flat.numel()]))


def two_phase(make: Make, formula: str, rows: Callable[[Tensor], Tensor] = mean) -> Built:
    """Return ``promise`` and ``build`` of a compressor that sums in two phases.

    In the first phase each rank receives one part of every rank's gradients and averages it. In
    the second phase it sends the mean to all ranks. ``rows`` is the function that averages: it
    reduces the rows from all ranks to one row.
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
    """A hook with an all-to-all of encoded parts, a mean in fp32, and an all-gather of the means.

    Error feedback applies to both encodings: of this rank's gradients, and of the mean that this
    rank computes.
    """

    def __init__(
        self, ctx: RankContext, codec: Codec, feedback: bool, rows: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(ctx, codec, feedback)
        self.rows = rows
        self.of_sums: dict[int, Tensor] = {}  # residuals of the means, by the bucket's size

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


#: How ``packed`` packs values of 1, 2 or 4 bits: a word type, a factor and a shift for each number
#: of bits. If k values fit into a byte, a word has k bytes, one for each value. A multiplication by
#: the factor moves all values into the highest byte of the word, and the shift extracts that byte.
WORDS = {
    1: (torch.int64, 0x8040_2010_0804_0201 - (1 << 64), 56),
    2: (torch.int32, 0x4010_0401, 24),
    4: (torch.int16, 0x1001, 8),
}


def packed(values: Tensor, bits: int) -> Tensor:
    """Pack uint8 values below 2^bits of shape (rows, m) into uint8 of shape (rows, m bits / 8).

    The first value is in the highest bits. One multiplication per word replaces one shift per
    value. This needs a little-endian host, as torch does.
    """
    word, together, shift = WORDS[bits]
    return (values.view(word) * together).bitwise_right_shift_(shift).to(torch.uint8)


def unpacked(message: Tensor, table: Tensor) -> Tensor:
    """Return the values in packed bytes of shape (rows, b).

    The result has the shape (rows, b times values per byte). ``table`` comes from ``lookup``.
    """
    rows = table.to(message.device).index_select(0, message.flatten().int())
    return rows.view(len(message), -1)


def lookup(bits: int, meaning: Sequence[float]) -> Tensor:
    """Return a table of the decoded values in each possible byte.

    It is fp32 of shape (256, values per byte). ``meaning`` holds the decoded number for each value
    below 2^bits.
    """
    per_byte = 8 // bits
    shifts = [bits * (per_byte - 1 - i) for i in range(per_byte)]
    rows = [[meaning[(byte >> shift) & (2**bits - 1)] for shift in shifts] for byte in range(256)]
    return torch.tensor(rows, dtype=torch.float32)


def largest(blocks: Tensor) -> Tensor:
    """Return the largest magnitude in each block.

    ``blocks`` has the shape (rows, blocks, unit) and the result (rows, blocks). Two reductions
    avoid the copy that ``abs`` would make.
    """
    return torch.maximum(blocks.amax(2), -blocks.amin(2))


def with_scales(values: Tensor, scales: Tensor) -> Tensor:
    """Append fp32 scales (rows, b), as bytes, to uint8 values (rows, a)."""
    return torch.cat((values, scales.contiguous().view(torch.uint8)), 1)


def scales_of(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Split the result of ``with_scales`` into values and ``count`` scales per row."""
    split = message.shape[1] - 4 * count
    scales = message[:, split:].flatten().clone()  # the view needs an aligned copy
    return message[:, :split], scales.view(torch.float32).view(len(message), count)
