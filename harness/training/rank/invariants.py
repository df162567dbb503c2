"""Check a compressor: the mathematical claims of its file, and each rank's share of its output.

A compressor's hook receives a gradient on every rank, and returns to all ranks an approximation of
the mean gradient. That approximation is called its output here.
"""

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

#: A gradient is folded into this number of sums. Each sum adds some elements of the gradient, with
#: random signs.
WIDTH = 65_536
#: Steps that are examined together as one block.
BLOCK = 8
#: Number of consecutive parts of the parameters. Each part is also examined separately.
PARTS = 16
#: Parts are not examined if the whole folded gradient has fewer numbers than this. A part then has
#: too few numbers to distinguish the gradients of the ranks.
LEAST_WIDTH = 16_384
#: Smallest share of a rank that passes, relative to the mean share of all ranks (the even share).
LEAST_SHARE = 0.25
#: Smallest even share that passes. It is the fraction of the ranks' gradients that the output
#: contains on average.
LEAST_EVEN = 0.01


class Fit(NamedTuple):
    """The share of each rank in an output (``shares``), with a bound of its error (``errors``).

    The share of a rank is 1 if its gradient has the same weight in the output as in the exact mean.
    """

    shares: list[float]
    errors: list[float]


@dataclass(frozen=True)
class GradientSums:
    """Sums of folded gradients over ``steps`` steps.

    ``of_rank`` is the sum of this rank's gradients, ``made`` the sum of the compressor's outputs.
    """

    of_rank: Tensor
    made: Tensor
    steps: int = 1

    def __add__(self, other: Self) -> GradientSums:
        """Return the sums over the steps of both objects."""
        return GradientSums(
            self.of_rank + other.of_rank, self.made + other.made, self.steps + other.steps
        )


class CodecShares:
    """Estimates the share of each rank's gradients in a compressor's output.

    There is one estimate for each block of steps, and one for all steps together. ``add`` and
    ``check`` are collectives of all ranks.
    """

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._signs = torch.zeros(0)
        self._block: GradientSums | None = None
        self._all: GradientSums | None = None
        self._silent = self._longest = 0
        self.blocks: list[Fit] = []
        self._of_parts: list[tuple[Fit, str]] = []

    def add(self, of_rank: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Add one step: the gradients of this rank, and the compressor's output ``made``."""
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
        """Return the gradients as a vector of at most ``WIDTH`` sums with random signs."""
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
        """Fit each part of the parameters separately, if the parts are large enough."""
        if len(made) < LEAST_WIDTH:
            return
        parts = zip(gradients.chunk(PARTS, 1), made.chunk(PARTS), strict=True)
        for number, (theirs, handed_on) in enumerate(parts):
            fit = self._fitted(theirs, handed_on)
            self._of_parts.append((fit, f"in part {number + 1} of {PARTS} {when}"))

    def _gathered(self, sums: GradientSums) -> tuple[Tensor, Tensor]:
        """Return the sums of all ranks, shape (ranks, numbers), and of the output, shape (numbers).

        This is a collective of all ranks.
        """
        sums_of_ranks = [torch.zeros_like(sums.of_rank) for _ in range(self._ctx.world_size)]
        dist.all_gather(sums_of_ranks, sums.of_rank)
        return torch.stack(sums_of_ranks).double().cpu(), sums.made.double().cpu()

    def _fitted(self, gradients: Tensor, handed_on: Tensor) -> Fit:
        """Fit the output as a linear combination of the ranks' gradients by least squares.

        The error of a rank's share is at most the norm of the residual, divided by the length of
        the component of the rank's gradient that is orthogonal to all other gradients.
        """
        ranks = len(gradients)
        finite = gradients.isfinite().all() and handed_on.isfinite().all()
        # Other checks report losses that are not finite, and an output that stays zero for long.
        if not finite or not handed_on.any():
            return Fit([1.0] * ranks, [math.inf] * ranks)
        inverse = torch.linalg.pinv(gradients @ gradients.T)
        shares = inverse @ (gradients @ handed_on)
        rest = handed_on - shares @ gradients
        # The length of the component of a gradient that is orthogonal to all others. It is 0 for a
        # rank without samples.
        alone = inverse.diagonal().clamp(min=1e-300).rsqrt()
        alone[gradients.norm(dim=1) == 0] = 0.0
        return Fit((ranks * shares).tolist(), (ranks * rest.norm() / alone).tolist())

    def check(self) -> Check:
        """Check the smallest share of a rank, relative to the mean share of all ranks.

        All blocks, all parts and the whole training are examined. A compressor with a high
        threshold may return zeros for a while. The check fails if the output is zero in at least
        the last ``BLOCK`` steps, and for more than twice as long as ever before.
        """
        name = "codec.shares"
        if self._all is None:
            return Check(name=name, ok=False, detail="no gradient passed through the compressor")
        if self._silent > max(BLOCK - 1, 2 * self._longest):
            detail = f"the compressor's output was zero in the last {self._silent} steps"
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
                    detail = (
                        f"the compressor's output {when} contains this fraction of an even share"
                        f" of rank {rank}'s gradients"
                    )
                    worst = replace(worst, ok=ok, value=of_even, detail=detail)
        return worst


def _steps(block: int) -> str:
    """Return the first and the last step of a block as text."""
    return f"in steps {block * BLOCK} to {block * BLOCK + BLOCK - 1}"


#: Shapes of the parameters with which a hook is checked. Their numbers of elements are not
#: multiples of any block size.
SHAPES = ((37, 64), (129,), (64, 33), (5,))
#: Number of steps in which a hook's output is compared with the exact mean.
STEPS = 12
#: Number of outputs for the same gradient with which a bias is looked for.
DRAWS = 100
#: Largest relative error that rounding in fp32 sums may cause.
ROUNDING = 1e-4
#: Number of standard errors by which the mean of these outputs may differ from the gradient. The
#: norm over thousands of elements has an uncertainty of only a few percent, so a small number
#: suffices.
SURE = 1.5
#: The bytes that a compressor states must be at least this fraction of the bytes that Shannon's
#: bound requires for its output.
ENOUGH = 0.9
#: Outputs are drawn until the relative standard error of their mean length is this small.
LENGTH_ERROR = 1e-3
#: Largest number of outputs that are drawn.
MOST_DRAWS = 2_000
#: Number of standard errors by which the mean length of the outputs may differ from the length of
#: the gradient.
SURE_OF_LENGTH = 5.0
#: Value of a spike: an element that is far larger than all others of its tensor. It fits in fp16.
SPIKE = 10_000.0
#: Number of test gradients, each with one spike in every tensor.
SPIKES = 8
#: After many calls of a hook, the error of a spike may be this factor times the error with a
#: new hook.
WORSE = 1.25
#: Relative error of a spike that is allowed in addition to that product.
WORSE_BY = 0.02


class CodecBucket:
    """A substitute for the ``GradBucket`` that DDP passes to a communication hook."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._flat = torch.zeros(
            sum(parameter.numel() for parameter in parameters), device=self._parameters[0].device
        )

    def fill(self, flat: Tensor) -> CodecBucket:
        """Set the gradients from a flat tensor, and return the bucket."""
        self._flat.copy_(flat)
        return self

    def index(self) -> int:
        """Return 0, the index of the only bucket."""
        return 0

    def is_last(self) -> bool:
        """Return True, because a step has a single bucket."""
        return True

    def buffer(self) -> Tensor:
        """Return the flat gradient of all parameters."""
        return self._flat

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the bucket."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """Return a view of the flat gradient for each parameter."""
        parts = self._flat.split([parameter.numel() for parameter in self._parameters])
        return [
            part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)
        ]


class CodecTrial:
    """A new hook of a compressor, which is called with random gradients."""

    def __init__(self, ctx: RankContext, compressor: Compressor) -> None:
        self.ctx = ctx
        self.bucket = CodecBucket([nn.Parameter(torch.zeros(s, device=ctx.device)) for s in SHAPES])
        self.hook = compressor.build(ctx)

    def drawn(self, step: int, rank: int | None = None) -> Tensor:
        """Return a random gradient for a rank, or a common one for all ranks if ``rank`` is None.

        In odd steps one element in ten is about a hundred times larger than the rest.
        """
        source = torch.Generator().manual_seed(step * 1009 + (rank or 0) * 7 + (rank is None))
        size = len(self.bucket.buffer())
        few = torch.rand(size, generator=source) < (0.1 if step % 2 else 1.0)
        spread = torch.where(few, 1.0, 0.01)
        return (torch.randn(size, generator=source) * spread).to(self.ctx.device)

    def sent(self, gradient: Tensor) -> Tensor:
        """Call the hook with a gradient and return its output, in a collective of all ranks."""
        handed_on: Tensor = self.hook(self.bucket.fill(gradient)).wait()
        return handed_on.clone()

    def owed(self) -> Tensor:
        """Return the mean over ranks of the error feedback that the hook keeps for later steps."""
        feedback = self.hook.feedback
        parts = [
            feedback.owed[parameter].flatten()
            for parameter in self.bucket.parameters()
            if parameter in feedback.owed
        ]
        size = len(self.bucket.buffer())
        residual = torch.cat(parts) if parts else torch.zeros(size, device=self.ctx.device)
        if residual.numel() != size:  # the hook sends some parameters without compression
            residual = torch.cat(
                [
                    feedback.owed.get(parameter, torch.zeros_like(parameter)).flatten()
                    for parameter in self.bucket.parameters()
                ]
            )
        for total, part in getattr(self.hook, "of_sums", {}).items():
            sums = torch.zeros(total, device=residual.device)
            rows = sums.view(self.ctx.world_size, -1)
            rows[self.ctx.rank] = part[0] * self.ctx.world_size  # other ranks have no such error
            residual = residual + sums[:size]
        return self.mean(residual)

    def mean(self, gradient: Tensor) -> Tensor:
        """Return the mean of a gradient over all ranks in float64, in a collective of all ranks."""
        total = gradient.double()
        if self.ctx.world_size > 1:
            dist.all_reduce(total)
        return total / self.ctx.world_size


def checks(ctx: RankContext, compressor: Compressor) -> Iterator[Check]:
    """Check all claims of a compressor's file, in collectives of all ranks."""
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
    """Check hooks that have been called ``calls`` times, in collectives of all ranks."""
    yield _heard(ctx, compressor, calls)
    yield _as_when_new(ctx, compressor, calls)
    trial = CodecTrial(ctx, compressor)
    if getattr(trial.hook, "feedback", None) is not None:
        yield _telescopes(ctx, compressor, calls)
    elif _claim(trial, compressor) == "":
        yield _exact(ctx, compressor, calls)


def _claim(trial: CodecTrial, compressor: Compressor) -> str:
    """Return the property that a compressor's hook or file claims for its output.

    It is "contracts", "unbiased", "descends", or "" if the output is the exact mean.
    """
    claim: str = getattr(trial.hook, "claim", getattr(compressor.module, "CLAIM", ""))
    return claim


def _telescopes(ctx: RankContext, compressor: Compressor, calls: int = 0) -> Check:
    """Check that the outputs and the remaining error feedback add up to the sum of the gradients.

    The sums cover ``calls`` + ``STEPS`` calls of the hook.
    """
    knobs = {**compressor.knobs, **getattr(compressor.module, "TELESCOPES", {})}
    trial = CodecTrial(ctx, replace(compressor, knobs=knobs))
    name = "codec.telescopes"
    if getattr(trial.hook, "feedback", None) is None:
        return Check(name=name, ok=True, detail="not checked: no error feedback")
    wanted = sent = torch.zeros(len(trial.bucket.buffer()), dtype=torch.float64).to(ctx.device)
    for step in range(calls + STEPS):
        gradient = trial.drawn(step, ctx.rank)
        wanted = wanted + trial.mean(gradient)
        sent = sent + trial.sent(gradient)
    error = float((sent + trial.owed() - wanted).norm() / wanted.norm())
    return Check(name=name, ok=error <= ROUNDING, value=error, limit=ROUNDING)


def _heard(ctx: RankContext, compressor: Compressor, calls: int) -> Check:
    """Check that after ``calls`` calls the output depends on the gradient of each rank.

    Two new hooks are called with the same gradients, except that the last gradient of one rank is
    negated for the second hook. Their last outputs must differ. Up to four ranks are examined.
    """

    def handed_on(negated: int | None) -> bytes:
        """Return the last output of a new hook; rank ``negated`` negates its last gradient."""
        trial = CodecTrial(ctx, compressor)
        for step in range(calls):
            trial.sent(trial.drawn(step, ctx.rank))
        sign = -1.0 if ctx.rank == negated else 1.0
        result = trial.sent(sign * trial.drawn(calls, ctx.rank)) + 0.0  # turns -0.0 into 0.0
        return bytes(result.cpu().numpy().tobytes())

    last = ctx.world_size - 1
    usual = handed_on(None)
    asked = sorted({0, last // 3, 2 * last // 3, last})
    deaf = [rank for rank in asked if handed_on(rank) == usual]
    detail = (
        f"the output does not depend on rank {deaf[0]}'s gradient after {calls} calls"
        if deaf
        else ""
    )
    return Check(name="codec.hears_every_rank", ok=not deaf, detail=detail)


def _as_when_new(ctx: RankContext, compressor: Compressor, calls: int) -> Check:
    """Check that a hook transmits a spike after ``calls`` calls as well as a new hook does.

    In each test gradient, one element of each tensor is much larger than all others (a spike). Only
    one rank at a time has the spike. No compressor may leave that element out. The limit for the
    relative error of the old hook follows from the error of a new hook.
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
        detail=f"relative error of the largest element of a {SHAPES[worst]} tensor"
        f" after {calls} calls",
    )


def _spikes_off(trial: CodecTrial) -> Tensor:
    """Return the relative error of each spike in the output, shape (``SPIKES``, tensors)."""
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
    """Check that the output is the mean over ranks, within the error that the file states.

    Each rank has a different random gradient.
    """
    trial = CodecTrial(ctx, compressor)
    worst = 0.0
    for step in range(calls + STEPS):
        gradient = trial.drawn(step, ctx.rank)
        result = trial.sent(gradient)
        if step >= calls:
            wanted = trial.mean(gradient)
            worst = max(worst, float((result - wanted).norm() / wanted.norm()))
    limit = max(compressor.error_bound, ROUNDING)
    detail = (
        f"relative error of the mean over ranks, after {calls} calls"
        if calls
        else "relative error of the mean over ranks"
    )
    return Check(name="codec.exact", ok=worst <= limit, value=worst, limit=limit, detail=detail)


def _enough(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that the stated bytes suffice for the information about other ranks in the output.

    Suppose a receiver reconstructs n secret numbers of a normal distribution, with a squared error
    that is a fraction d of their variance. With any code it must have received at least
    n / 2 * log2(1 / d) bits (Shannon, Coding theorems for a discrete source with a fidelity
    criterion, 1959). The check therefore detects information that was sent in addition to the
    stated bytes.
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
        detail=f"stated bytes per rank; the output needs at least {needed:.0f} bytes",
    )


def _alike(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that all ranks receive the same bits."""
    trial = CodecTrial(ctx, compressor)
    digest = hashlib.sha256()
    for step in range(3):
        digest.update(trial.sent(trial.drawn(step, ctx.rank)).cpu().numpy().tobytes())
    digests: list[Any] = [digest.hexdigest()]
    if ctx.world_size > 1:
        digests = [None] * ctx.world_size
        dist.all_gather_object(digests, digest.hexdigest())
    message = f"{len(set(digests))} different outputs on {len(digests)} ranks"
    return Check(name="codec.same_bits", ok=len(set(digests)) == 1, detail=message)


def _alone(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that the hook does not advance torch's global random generator, which dropout uses."""
    trial = CodecTrial(ctx, compressor)
    before = torch.get_rng_state()
    trial.sent(trial.drawn(0))
    same = bool((before == torch.get_rng_state()).all())
    return Check(name="codec.leaves_the_generator", ok=same)


def _worst(
    ctx: RankContext, compressor: Compressor, of: Callable[[Tensor, Tensor], float]
) -> float:
    """Return the largest value of ``of(output, gradient)`` over several gradients.

    Each gradient is the same on all ranks.
    """
    figures = []
    for draw in range(4):
        trial = CodecTrial(ctx, compressor)
        gradient = trial.drawn(draw)
        figures.append(of(trial.sent(gradient), gradient))
    return max(figures)


def _contracts(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that |C(x) - x| < |x|. Otherwise the error feedback would grow without bound."""
    error = _worst(ctx, compressor, lambda made, given: float((made - given).norm() / given.norm()))
    return Check(name="codec.contracts", ok=error < 1, value=error, limit=1.0)


def _descends(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that the scalar product of a gradient and the output for it is positive."""
    against = _worst(
        ctx, compressor, lambda made, given: -float(made @ given / made.norm() / given.norm())
    )
    return Check(name="codec.descends", ok=against < 0, value=-against, limit=0.0, at_least=True)


def _unbiased(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that the mean of many outputs for one gradient differs from it by chance only."""
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
    message = f"error of the mean of {DRAWS} outputs for one gradient"
    return Check(name="codec.unbiased", ok=bias <= limit, value=bias, limit=limit, detail=message)


def _as_long(ctx: RankContext, compressor: Compressor) -> Check:
    """Check that outputs have, on average, the gradient's length in the gradient's direction.

    If all elements are one percent too large, the noise of a single element hides this error. The
    length is a sum over all elements. Its noise is small, so it shows the error.
    """
    trial = CodecTrial(ctx, compressor)
    gradient = trial.drawn(0).double()
    size = float(gradient @ gradient)

    def length() -> float:
        """Return the length of one output along the gradient, relative to the gradient's length."""
        return float(trial.sent(trial.drawn(0)).double() @ gradient) / size

    lengths = [length() for _ in range(DRAWS)]
    wanted = min(MOST_DRAWS, math.ceil((stdev(lengths) / LENGTH_ERROR) ** 2))
    # All ranks draw equally often, because each draw is a collective.
    lengths += [length() for _ in range(max(ctx.gather(wanted)) - DRAWS)]
    error = stdev(lengths) / len(lengths) ** 0.5
    off = abs(fmean(lengths) - 1)
    limit = SURE_OF_LENGTH * error + ROUNDING
    detail = f"{len(lengths)} outputs have {fmean(lengths):.4f} of the gradient's length on average"
    return Check(name="codec.length", ok=off <= limit, value=off, limit=limit, detail=detail)
