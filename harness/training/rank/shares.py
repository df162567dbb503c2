"""What every rank's gradients have in what a codec makes of them.

A reference that goes through the case's own codec can't tell whether the codec is right. So in the
reference's training the sum of what it made, over a block of steps and over all of them, is fitted
by the ranks' own gradients of those steps: made = sum over r of share_r / N * gradient_r (least
squares). The mean of all ranks has shares of 1. Zeros, the negative, or one rank's gradient only
have others, whatever the codec claims of itself.

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
#: Steps of a block.
BLOCK = 8
#: A rank has too little with less than this part of an even share; all of them, with less than
#: this part of their gradients.
LEAST, LEAST_EVEN = 0.25, 0.01


class Fit(NamedTuple):
    """Shares of the ranks, 1 where their mean is handed on, and how far they may be off."""

    shares: list[float]
    errors: list[float]


@dataclass(frozen=True)
class Sums:
    """Folded sums over steps: of this rank's gradients, and of what all ranks were given."""

    own: Tensor
    made: Tensor
    steps: int = 1

    def __add__(self, other: Self) -> "Sums":
        return Sums(self.own + other.own, self.made + other.made, self.steps + other.steps)


class Shares:
    """Looks at a block of steps at a time, and at all of them; all ranks call it."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._signs = torch.zeros(0)
        self._block: Sums | None = None
        self._all: Sums | None = None
        self._silent = self._longest = 0
        self.blocks: list[Fit] = []

    def add(self, own: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """A step's gradients of this rank, and what all ranks were given."""
        step = Sums(self._folded(own), self._folded(made))
        self._all = self._all + step if self._all else step
        self._block = self._block + step if self._block else step
        if self._block.steps == BLOCK:
            self.blocks.append(self._fitted(self._block))
            self._block = None
        self._silent += 1
        if step.made.any():
            self._longest = max(self._longest, self._silent)
            self._silent = 0

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

    def _fitted(self, sums: Sums) -> Fit:
        ranks = self._ctx.world_size
        sums_of_ranks = [torch.zeros_like(sums.own) for _ in range(ranks)]
        dist.all_gather(sums_of_ranks, sums.own)
        gradients = torch.stack(sums_of_ranks).double().cpu()
        handed_on = sums.made.double().cpu()
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
            return Check(name=name, ok=False, value=0.0, limit=LEAST, detail=detail)
        looks = [
            (fit, f"in steps {number * BLOCK} to {number * BLOCK + BLOCK - 1}")
            for number, fit in enumerate(self.blocks)
        ]
        looks.append((self._fitted(self._all), f"in all {self._all.steps} steps"))
        worst = Check(name=name, ok=True, value=1.0, limit=LEAST)
        for fit, when in looks:
            even = max(sum(fit.shares) / len(fit.shares), 0.0)
            for rank, (share, error) in enumerate(zip(fit.shares, fit.errors, strict=True)):
                ok = share + error > LEAST * even and even + error > LEAST_EVEN
                part = share / even if even else 0.0
                if (ok, part) < (worst.ok, worst.value):
                    detail = f"of an even share of rank {rank}'s gradients was handed on {when}"
                    worst = replace(worst, ok=ok, value=part, detail=detail)
        return worst
