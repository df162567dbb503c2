"""Shares of every rank's gradients in the message that a codec makes of them.

A reference that goes through the case's own codec can't tell whether the codec is right. So in the
reference's training the sum of what it made, over a block of steps and over all of them, is fitted
by the ranks' own gradients of those steps: made = sum over r of share_r / N * gradient_r (least
squares). The mean of all ranks has shares of 1. Zeros, the negative, or one rank's gradient only
have others, whatever the codec claims of itself. Each part of the parameters is fitted by itself,
too: one rank for these, another one for those is no mean of all.

What a lossy codec rounds or still owes is the rest of the fit. It isn't noise: it can look like a
gradient. So a share is off by at most what a rest of that length could make of it
(Cauchy-Schwarz), and only what is too small beyond that is called wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor

from harness.record import Check
from harness.training.context import RankContext

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

    def __add__(self, other: Self) -> "GradientSums":
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
