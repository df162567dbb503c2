"""Checks of a compressor: its claims about its mathematics, and what it sends of each gradient."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.record import Check
from harness.training.context import Compressor, RankContext

#: Numbers that a gradient is folded into: each is a sum of elements with signs that were drawn.
WIDTH = 65_536
#: Steps of a block, and parts of the parameters in their order.
BLOCK = 8
PARTS = 16
#: Parts of fewer numbers than that, in all, say nothing of so many ranks.
LEAST_WIDTH = 16_384
#: A rank has too little with less than this part of an even share; all of them, with less than
#: this part of their gradients.
LEAST_SHARE = 0.25
LEAST_EVEN = 0.01


class Fit(NamedTuple):
    """Shares of the ranks, 1 where their mean is handed on, and how far they may be off."""

    shares: list[float]
    errors: list[float]


@dataclass(frozen=True)
class GradientSums:
    """Folded sums over steps: of this rank's gradients, and of what all ranks were given."""

    of_rank: Tensor
    made: Tensor
    steps: int = 1

    def __add__(self, other: Self) -> GradientSums:
        return GradientSums(
            self.of_rank + other.of_rank, self.made + other.made, self.steps + other.steps
        )


class CodecShares:
    """Looks at a block of steps at a time, and at all of them; all ranks call it."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._signs = torch.zeros(0)
        self._block: GradientSums | None = None
        self._all: GradientSums | None = None
        self._silent = self._longest = 0
        self.blocks: list[Fit] = []
        self._of_parts: list[tuple[Fit, str]] = []

    def add(self, of_rank: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """A step's gradients of this rank, and what all ranks were given."""
        step = GradientSums(self._folded(of_rank), self._folded(made))
        self._all = self._all + step if self._all else step
        self._block = self._block + step if self._block else step
        if self._block.steps == BLOCK:
            gradients, handed_on = self._gathered(self._block)
            self._look_at_parts(gradients, handed_on, _steps(len(self.blocks)))
            self.blocks.append(self._fitted(gradients, handed_on))
            self._block = None
        self._silent += 1
        if step.made.any():
            self._longest = max(self._longest, self._silent)
            self._silent = 0

    def _folded(self, gradients: Sequence[Tensor]) -> Tensor:
        flat = torch.cat([gradient.detach().flatten().float() for gradient in gradients])
        if len(flat) <= WIDTH:
            return flat
        if not len(self._signs):
            generator = torch.Generator(flat.device).manual_seed(len(flat))
            drawn = torch.randint(2, flat.shape, generator=generator, device=flat.device)
            self._signs = (2 * drawn - 1).to(torch.int8)
        signed = torch.nn.functional.pad(flat * self._signs, (0, -len(flat) % WIDTH))
        return signed.view(PARTS, -1, WIDTH // PARTS).sum(1).flatten()

    def _look_at_parts(self, gradients: Tensor, made: Tensor, when: str) -> None:
        """Fits each part of the parameters by itself, where there are enough of them."""
        if len(made) < LEAST_WIDTH:
            return
        parts = zip(gradients.chunk(PARTS, 1), made.chunk(PARTS), strict=True)
        for number, (theirs, handed_on) in enumerate(parts):
            fit = self._fitted(theirs, handed_on)
            self._of_parts.append((fit, f"in part {number + 1} of {PARTS} {when}"))

    def _gathered(self, sums: GradientSums) -> tuple[Tensor, Tensor]:
        """All ranks' sums (ranks, numbers), and what was made of them (numbers)."""
        sums_of_ranks = [torch.zeros_like(sums.of_rank) for _ in range(self._ctx.world_size)]
        dist.all_gather(sums_of_ranks, sums.of_rank)
        return torch.stack(sums_of_ranks).double().cpu(), sums.made.double().cpu()

    def _fitted(self, gradients: Tensor, handed_on: Tensor) -> Fit:
        ranks = len(gradients)
        finite = gradients.isfinite().all() and handed_on.isfinite().all()
        if not finite or not handed_on.any():  # told elsewhere: by the losses, by the silence
            return Fit([1.0] * ranks, [math.inf] * ranks)
        inverse = torch.linalg.pinv(gradients @ gradients.T)
        shares = inverse @ (gradients @ handed_on)
        rest = handed_on - shares @ gradients
        # The length of what a gradient has and no other rank's; none without samples.
        alone = inverse.diagonal().clamp(min=1e-300).rsqrt()
        alone[gradients.norm(dim=1) == 0] = 0.0
        return Fit((ranks * shares).tolist(), (ranks * rest.norm() / alone).tolist())

    def check(self) -> Check:
        """The smallest share of a rank, in a block or in all of them, over the mean of all ranks'.

        A codec whose threshold is far may hand on nothing for a while: it is silent for good where
        that takes a block of steps and twice as many as ever before.
        """
        name = "codec.shares"
        if self._all is None:
            return Check(name=name, ok=False, detail="no gradient went through the codec")
        if self._silent > max(BLOCK - 1, 2 * self._longest):
            detail = f"nothing was handed on in the last {self._silent} steps"
            return Check(
                name=name, ok=False, value=0.0, limit=LEAST_SHARE, at_least=True, detail=detail
            )
        looks = [(fit, _steps(number)) for number, fit in enumerate(self.blocks)]
        gradients, handed_on = self._gathered(self._all)
        steps = f"in all {self._all.steps} steps"
        looks.append((self._fitted(gradients, handed_on), steps))
        self._look_at_parts(gradients, handed_on, steps)
        looks += self._of_parts
        worst = Check(name=name, ok=True, value=1.0, limit=LEAST_SHARE, at_least=True)
        for fit, when in looks:
            even = max(sum(fit.shares) / len(fit.shares), 0.0)
            for rank, (share, error) in enumerate(zip(fit.shares, fit.errors, strict=True)):
                ok = share + error > LEAST_SHARE * even and even + error > LEAST_EVEN
                of_even = share / even if even else 0.0
                if worst.value is not None and (ok, of_even) < (worst.ok, worst.value):
                    detail = f"of an even share of rank {rank}'s gradients was handed on {when}"
                    worst = replace(worst, ok=ok, value=of_even, detail=detail)
        return worst


def _steps(block: int) -> str:
    return f"in steps {block * BLOCK} to {block * BLOCK + BLOCK - 1}"


#: Shapes of the parameters of a trial; their elements are no multiple of any block.
SHAPES = ((37, 64), (129,), (64, 33), (5,))
#: Steps of a trial with feedback, and draws of one without bias.
STEPS = 12
DRAWS = 100
#: Relative errors of sums in fp32; how many times its standard error a mean of thousands of
#: elements may be off: that of their norm is a few percent of it.
ROUNDING = 1e-4
SURE = 1.5
#: Of the bytes that what was handed on must have taken, this part must have been sent.
ENOUGH = 0.9
#: How long draws are on average is looked at until its standard error is this, or this often; and
#: how many of it they may be too long or too short.
LENGTH_ERROR = 1e-3
MOST_DRAWS = 2_000
SURE_OF_LENGTH = 5.0
#: An element that nothing else comes near to (it fits fp16), gradients in which one of each tensor
#: is that, and by how much more than a new codec's an old one's may be off.
SPIKE = 10_000.0
SPIKES = 8
WORSE = 1.25
WORSE_BY = 0.02


class CodecBucket:
    """The bucket that DDP gives a communication hook."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._flat = torch.zeros(
            sum(parameter.numel() for parameter in parameters), device=self._parameters[0].device
        )

    def fill(self, flat: Tensor) -> CodecBucket:
        self._flat.copy_(flat)
        return self

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self._flat

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def gradients(self) -> list[Tensor]:
        parts = self._flat.split([parameter.numel() for parameter in self._parameters])
        return [
            part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)
        ]


class CodecTrial:
    """A fresh hook on gradients that are drawn for this rank."""

    def __init__(self, ctx: RankContext, compressor: Compressor) -> None:
        self.ctx = ctx
        self.bucket = CodecBucket([nn.Parameter(torch.zeros(s, device=ctx.device)) for s in SHAPES])
        self.hook = compressor.build(ctx)

    def drawn(self, step: int, rank: int | None = None) -> Tensor:
        """A gradient of this rank, or the same for all; in every other step of two magnitudes."""
        source = torch.Generator().manual_seed(step * 1009 + (rank or 0) * 7 + (rank is None))
        size = len(self.bucket.buffer())
        few = torch.rand(size, generator=source) < (0.1 if step % 2 else 1.0)
        spread = torch.where(few, 1.0, 0.01)
        return (torch.randn(size, generator=source) * spread).to(self.ctx.device)

    def sent(self, gradient: Tensor) -> Tensor:
        """Gives a gradient to the hook, and returns what all ranks get of it; a collective."""
        handed_on: Tensor = self.hook(self.bucket.fill(gradient)).wait()
        return handed_on.clone()

    def owed(self) -> Tensor:
        """The part that the mean over ranks is still to be given."""
        feedback = self.hook.feedback
        parts = [
            feedback.owed[parameter].flatten()
            for parameter in self.bucket.parameters()
            if parameter in feedback.owed
        ]
        size = len(self.bucket.buffer())
        residual = torch.cat(parts) if parts else torch.zeros(size, device=self.ctx.device)
        if residual.numel() != size:  # some are sent as they are
            residual = torch.cat(
                [
                    feedback.owed.get(parameter, torch.zeros_like(parameter)).flatten()
                    for parameter in self.bucket.parameters()
                ]
            )
        for total, part in getattr(self.hook, "of_sums", {}).items():
            sums = torch.zeros(total, device=residual.device)
            rows = sums.view(self.ctx.world_size, -1)
            rows[self.ctx.rank] = part[0] * self.ctx.world_size  # nobody else has it
            residual = residual + sums[:size]
        return self.mean(residual)

    def mean(self, gradient: Tensor) -> Tensor:
        """Over all ranks."""
        total = gradient.double()
        if self.ctx.world_size > 1:
            dist.all_reduce(total)
        return total / self.ctx.world_size


def checks(ctx: RankContext, compressor: Compressor) -> Iterator[Check]:
    """All that a compressor's file claims. Collectives of all ranks."""
    yield _telescopes(ctx, compressor)
    yield _alike(ctx, compressor)
    yield _alone(ctx, compressor)
    if ctx.world_size > 1:
        yield _enough(ctx, compressor)
    claim = _claim(CodecTrial(ctx, compressor), compressor)
    if claim == "contracts":
        yield _contracts(ctx, compressor)
    elif claim == "unbiased":
        yield _unbiased(ctx, compressor)
        yield _as_long(ctx, compressor)
    elif claim == "descends":
        yield _descends(ctx, compressor)
    else:
        yield _exact(ctx, compressor)


def aged(ctx: RankContext, compressor: Compressor, calls: int) -> Iterator[Check]:
    """Asks what can be asked of a hook that has been called so often. Collectives of all ranks."""
    yield _heard(ctx, compressor, calls)
    yield _as_when_new(ctx, compressor, calls)
    trial = CodecTrial(ctx, compressor)
    if getattr(trial.hook, "feedback", None) is not None:
        yield _telescopes(ctx, compressor, calls)
    elif _claim(trial, compressor) == "":
        yield _exact(ctx, compressor, calls)


def _claim(trial: CodecTrial, compressor: Compressor) -> str:
    claim: str = getattr(trial.hook, "claim", getattr(compressor.module, "CLAIM", ""))
    return claim


def _telescopes(ctx: RankContext, compressor: Compressor, calls: int = 0) -> Check:
    """Checks that the sent and the owed parts add up to the gradients, after ``calls`` more of
    them.
    """
    knobs = {**compressor.knobs, **getattr(compressor.module, "TELESCOPES", {})}
    trial = CodecTrial(ctx, replace(compressor, knobs=knobs))
    name = "codec.telescopes"
    if getattr(trial.hook, "feedback", None) is None:
        return Check(name=name, ok=True, detail="nothing is owed: without error feedback")
    wanted = sent = torch.zeros(len(trial.bucket.buffer()), dtype=torch.float64).to(ctx.device)
    for step in range(calls + STEPS):
        gradient = trial.drawn(step, ctx.rank)
        wanted = wanted + trial.mean(gradient)
        sent = sent + trial.sent(gradient)
    error = float((sent + trial.owed() - wanted).norm() / wanted.norm())
    return Check(name=name, ok=error <= ROUNDING, value=error, limit=ROUNDING)


def _heard(ctx: RankContext, compressor: Compressor, calls: int) -> Check:
    """After ``calls`` gradients, what is handed on is another one where one rank's is negated.

    Hooks that were built and called alike are compared, of up to four ranks.
    """

    def handed_on(negated: int | None) -> bytes:
        trial = CodecTrial(ctx, compressor)
        for step in range(calls):
            trial.sent(trial.drawn(step, ctx.rank))
        sign = -1.0 if ctx.rank == negated else 1.0
        result = trial.sent(sign * trial.drawn(calls, ctx.rank)) + 0.0  # no zero is negative
        return bytes(result.cpu().numpy().tobytes())

    last = ctx.world_size - 1
    usual = handed_on(None)
    asked = sorted({0, last // 3, 2 * last // 3, last})
    deaf = [rank for rank in asked if handed_on(rank) == usual]
    detail = f"deaf to rank {deaf[0]}'s gradient, after {calls} calls" if deaf else ""
    return Check(name="codec.hears_every_rank", ok=not deaf, detail=detail)


def _as_when_new(ctx: RankContext, compressor: Compressor, calls: int) -> Check:
    """A spike comes through after ``calls`` gradients as it did at first.

    One element of each tensor is larger than all others, on one rank in turn: whatever a codec
    leaves out, it is not that. How far off it is made is a new hook's own measure for the old one.
    """
    new = _spikes_off(CodecTrial(ctx, compressor))
    trial = CodecTrial(ctx, compressor)
    for step in range(calls):
        trial.sent(trial.drawn(step, ctx.rank))
    old = _spikes_off(trial).median(0).values
    excess = old - (WORSE * new.max(0).values + WORSE_BY)
    worst = int(excess.nan_to_num(0.0).argmax())
    return Check(
        name="codec.as_when_new",
        ok=not excess[worst] > 0,
        value=float(old[worst]),
        limit=float(WORSE * new.max(0).values[worst] + WORSE_BY),
        detail=f"of the largest element of a {SHAPES[worst]} tensor is lost after {calls} calls",
    )


def _spikes_off(trial: CodecTrial) -> Tensor:
    """Relative errors (spikes, tensors) of what is made of an element of each tensor."""
    sizes = [math.prod(shape) for shape in SHAPES]
    errors = []
    for number in range(SPIKES):
        tensors = trial.drawn(number).split(sizes)
        places = torch.stack([tensor.abs().argmax() for tensor in tensors])
        places += torch.tensor([0, *sizes[:-1]], device=places.device).cumsum(0)
        gradient = torch.zeros(sum(sizes), device=trial.ctx.device)
        if number % trial.ctx.world_size == trial.ctx.rank:
            gradient[places] = SPIKE
        wanted = SPIKE / trial.ctx.world_size
        errors.append((trial.sent(gradient)[places].double() / wanted - 1).abs())
    return torch.stack(errors).cpu()


def _exact(ctx: RankContext, compressor: Compressor, calls: int = 0) -> Check:
    """The mean over ranks, within the stated error, of gradients that have nothing in common."""
    trial = CodecTrial(ctx, compressor)
    worst = 0.0
    for step in range(calls + STEPS):
        gradient = trial.drawn(step, ctx.rank)
        result = trial.sent(gradient)
        if step >= calls:
            wanted = trial.mean(gradient)
            worst = max(worst, float((result - wanted).norm() / wanted.norm()))
    limit = max(compressor.error_bound, ROUNDING)
    detail = f"of the mean over ranks, after {calls} calls" if calls else "of the mean over ranks"
    return Check(name="codec.exact", ok=worst <= limit, value=worst, limit=limit, detail=detail)


def _enough(ctx: RankContext, compressor: Compressor) -> Check:
    """The bytes that it states can hold what it hands on of the other ranks' gradients.

    Of n numbers of a normal distribution that nobody else knows, whoever has them with a share d of
    their variance wrong was told n / 2 * log2(1 / d) bits at least, whatever the code (Shannon,
    Coding theorems for a discrete source with a fidelity criterion, 1959). What came another way
    than the stated bytes is not counted in them.
    """
    trial = CodecTrial(ctx, compressor)
    secret = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "big"))
    size = len(trial.bucket.buffer())
    drawn = torch.randn(size, generator=secret).to(ctx.device)
    result = trial.sent(drawn).double()
    others = trial.mean(drawn) - drawn.double() / ctx.world_size
    known = torch.stack([result, drawn.double()], dim=1).cpu()
    fit = torch.linalg.lstsq(known, others.cpu().unsqueeze(1), driver="gelsd").solution
    wrong = float((others.cpu() - (known @ fit).squeeze(1)).square().sum() / others.square().sum())
    needed = max(ctx.gather(size / 16 * math.log2(1 / min(max(wrong, 1e-300), 1.0))))
    stated = compressor.promise([torch.Size(shape) for shape in SHAPES], ctx.world_size).sent_bytes
    return Check(
        name="codec.bytes_suffice",
        ok=stated >= ENOUGH * needed,
        value=stated,
        limit=ENOUGH * needed,
        at_least=True,
        detail=f"bytes a rank that it states; what it hands on takes {needed:.0f} at least",
    )


def _alike(ctx: RankContext, compressor: Compressor) -> Check:
    """All ranks are given the same bits."""
    trial = CodecTrial(ctx, compressor)
    digest = hashlib.sha256()
    for step in range(3):
        digest.update(trial.sent(trial.drawn(step, ctx.rank)).cpu().numpy().tobytes())
    digests: list[Any] = [digest.hexdigest()]
    if ctx.world_size > 1:
        digests = [None] * ctx.world_size
        dist.all_gather_object(digests, digest.hexdigest())
    message = f"{len(set(digests))} different of {len(digests)}"
    return Check(name="codec.same_bits", ok=len(set(digests)) == 1, detail=message)


def _alone(ctx: RankContext, compressor: Compressor) -> Check:
    """Torch's global random numbers, of which dropout draws, stay as they are."""
    trial = CodecTrial(ctx, compressor)
    before = torch.get_rng_state()
    trial.sent(trial.drawn(0))
    same = bool((before == torch.get_rng_state()).all())
    return Check(name="codec.leaves_the_generator", ok=same)


def _worst(
    ctx: RankContext, compressor: Compressor, of: Callable[[Tensor, Tensor], float]
) -> float:
    """The largest figure of what is made of several gradients, each the same on all ranks."""
    figures = []
    for draw in range(4):
        trial = CodecTrial(ctx, compressor)
        gradient = trial.drawn(draw)
        figures.append(of(trial.sent(gradient), gradient))
    return max(figures)


def _contracts(ctx: RankContext, compressor: Compressor) -> Check:
    """|C(x) - x| < |x|, or what is owed would grow without end."""
    error = _worst(ctx, compressor, lambda made, given: float((made - given).norm() / given.norm()))
    return Check(name="codec.contracts", ok=error < 1, value=error, limit=1.0)


def _descends(ctx: RankContext, compressor: Compressor) -> Check:
    """Checks that the message made of a gradient points to its side."""
    against = _worst(
        ctx, compressor, lambda made, given: -float(made @ given / made.norm() / given.norm())
    )
    return Check(name="codec.descends", ok=against < 0, value=-against, limit=0.0, at_least=True)


def _unbiased(ctx: RankContext, compressor: Compressor) -> Check:
    """The mean of many draws is as near to the gradient as their number says."""
    trial = CodecTrial(ctx, compressor)
    gradient = trial.drawn(0)
    total = torch.zeros_like(gradient, dtype=torch.float64)
    squares = 0.0
    for _ in range(DRAWS):
        result = trial.sent(gradient).double()
        total += result
        squares += float((result - gradient).square().sum())
    bias = float((total / DRAWS - gradient).norm())
    limit = SURE * (squares / DRAWS / DRAWS) ** 0.5
    message = f"of the mean of {DRAWS} draws"
    return Check(name="codec.unbiased", ok=bias <= limit, value=bias, limit=limit, detail=message)


def _as_long(ctx: RankContext, compressor: Compressor) -> Check:
    """The check that the mean of many draws is as long as the gradient, in its direction.

    What is a percent short in all elements hides in their noise, but not in this sum over them.
    """
    trial = CodecTrial(ctx, compressor)
    gradient = trial.drawn(0).double()
    size = float(gradient @ gradient)

    def length() -> float:
        return float(trial.sent(trial.drawn(0)).double() @ gradient) / size

    lengths = [length() for _ in range(DRAWS)]
    wanted = min(MOST_DRAWS, math.ceil((stdev(lengths) / LENGTH_ERROR) ** 2))
    lengths += [length() for _ in range(max(ctx.gather(wanted)) - DRAWS)]  # all ranks as often
    error = stdev(lengths) / len(lengths) ** 0.5
    off = abs(fmean(lengths) - 1)
    limit = SURE_OF_LENGTH * error + ROUNDING
    detail = f"mean length of {len(lengths)} draws: {fmean(lengths):.4f} of the gradient's"
    return Check(name="codec.length", ok=off <= limit, value=off, limit=limit, detail=detail)
