"""What every rank's gradients have in what a codec makes of them.

A reference that goes through the case's own codec can't tell whether the codec is right. So in the
reference's training the sum of what it made, over a block of steps, is fitted by the ranks' own
gradients of that block: made = sum over r of share_r / N * gradient_r (least squares). The mean of
all ranks has shares of 1. Zeros, the negative, or one rank's gradient only have others, whatever
the codec claims of itself.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from harness.record import Check
from harness.training.context import RankContext

#: Numbers that a gradient is folded into: each is a sum of elements with signs that were drawn.
WIDTH = 65_536
#: Steps of a block.
BLOCK = 8
#: Less than this part of what is even among the ranks, or of the gradient at all, is too little
#: where so many standard errors more are, too. Shipped codecs have 0.6 and 0.2 of a decoder.
LEAST, LEAST_EVEN, SURE = 0.25, 0.01, 4.0


class Fit(NamedTuple):
    """Shares of the ranks, 1 where their mean is handed on, and their standard errors."""

    shares: list[float]
    errors: list[float]


class Shares:
    """Collects a block of steps at a time; all ranks call it."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._signs = torch.zeros(0)
        self._own = self._made = torch.zeros(0)
        self._steps = 0
        self.blocks: list[Fit] = []

    def add(self, own: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """A step's gradients of this rank, and what all ranks were given."""
        if not self._steps:
            self._own = self._made = torch.zeros(1, device=self._ctx.device)
        self._own = self._own + self._folded(own)
        self._made = self._made + self._folded(made)
        self._steps += 1
        if self._steps == BLOCK:
            self._steps = 0
            self.blocks.append(self._fitted())

    def _folded(self, gradients: Sequence[Tensor]) -> Tensor:
        flat = torch.cat([g.detach().flatten().float() for g in gradients])
        if len(flat) <= WIDTH:
            return flat
        if not len(self._signs):
            generator = torch.Generator(flat.device).manual_seed(len(flat))
            drawn = torch.randint(2, flat.shape, generator=generator, device=flat.device)
            self._signs = (2 * drawn - 1).to(torch.int8)
        signed = torch.nn.functional.pad(flat * self._signs, (0, -len(flat) % WIDTH))
        return signed.view(-1, WIDTH).sum(0)

    def _fitted(self) -> Fit:
        """Each rank's share in the block, and its standard error (White, Econometrica 1980)."""
        ranks = self._ctx.world_size
        every = [torch.zeros_like(self._own) for _ in range(ranks)]
        dist.all_gather(every, self._own)
        gradients = torch.stack(every).double().cpu()
        made = self._made.double().cpu()
        if not (gradients.isfinite().all() and made.isfinite().all()):
            return Fit([1.0] * ranks, [math.inf] * ranks)  # told elsewhere: losses are not finite
        inverse = torch.linalg.pinv(gradients @ gradients.T)
        shares = inverse @ (gradients @ made)
        scattered = gradients * (made - shares @ gradients)
        errors = (inverse @ (scattered @ scattered.T) @ inverse).diagonal().clamp(min=0).sqrt()
        errors[gradients.abs().sum(1) == 0] = math.inf  # of a rank without samples nothing is known
        return Fit((ranks * shares).tolist(), (ranks * errors).tolist())

    def check(self) -> Check:
        """The smallest share of a rank, in a block or in all of them, over the mean of all ranks'.

        It is too small where the error can't be the reason.
        """
        if self._steps and not self.blocks:  # a short training: all of it
            self.blocks.append(self._fitted())
        looks = [
            (fit, f"in steps {number * BLOCK} to {number * BLOCK + BLOCK - 1}")
            for number, fit in enumerate(self.blocks)
        ]
        if self.blocks:
            looks.append((_mean(self.blocks), f"in {len(self.blocks)} blocks of {BLOCK} steps"))
        if not looks:
            return Check(name="codec.shares", ok=False, detail="no gradient went through the codec")
        worst = Check(name="codec.shares", ok=True, value=1.0, limit=LEAST)
        for fit, when in looks:
            even = max(sum(fit.shares) / len(fit.shares), 0.0)
            for rank, (share, error) in enumerate(zip(fit.shares, fit.errors, strict=True)):
                ok = share + SURE * error > LEAST * even and even + SURE * error > LEAST_EVEN
                part = share / even if even else 0.0
                if (ok, part) < (worst.ok, worst.value):
                    detail = f"of an even share of rank {rank}'s gradients was handed on {when}"
                    worst = replace(worst, ok=ok, value=part, detail=detail)
        return worst


def _mean(blocks: Sequence[Fit]) -> Fit:
    """The mean of all blocks, whose errors are independent."""
    number = len(blocks)
    shares = [sum(x) / number for x in zip(*(b.shares for b in blocks), strict=True)]
    squares = [sum(e * e for e in x) for x in zip(*(b.errors for b in blocks), strict=True)]
    return Fit(shares, [square**0.5 / number for square in squares])
