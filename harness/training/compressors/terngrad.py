"""TernGrad: unbiased rounding to -1, 0 or 1 times the block's largest magnitude, in 2 bits."""

from typing import Any

import torch
from torch import Tensor

from harness.training import transports
from harness.training.context import RankContext
from harness.training.transports import Knobs

ERROR_BOUND = 16.0
#: ``clip`` limits magnitudes to this many standard deviations (2.5 in the paper); 0 sets no limit.
#: Clipped gradients are biased, so the compressor then claims only that their direction is right.
KNOBS = dict(block=1024, clip=0.0)
CLAIM = "unbiased"
METHOD = dict(optimizer="momentum")
MEANING = transports.lookup(2, (-1.0, 0.0, 1.0, 0.0))


class Codec:
    """A codec that keeps or drops each element at random (Wen et al., 2017).

    The probability of keeping x is |x| divided by the largest magnitude in its block.
    """

    def __init__(self, knobs: Knobs, generator: torch.Generator) -> None:
        self.unit = int(knobs["block"])
        self.clip = float(knobs["clip"])
        self.generator = generator
        if self.unit % 4:
            raise ValueError(
                f"block is {self.unit}; expected a multiple of 4, because four values fill a byte"
            )

    def bytes(self, m: int) -> int:
        return m // 4 + 4 * (m // self.unit)

    def encode(self, x: Tensor) -> Tensor:
        blocks = x.view(x.shape[0], -1, self.unit)
        if self.clip:
            most = self.clip * blocks.std(2, correction=0, keepdim=True)
            blocks = blocks.clamp(-most, most)
        scale = transports.largest(blocks)
        drawn = torch.rand(blocks.shape, generator=self.generator, device=x.device)
        least = drawn.mul_(scale[..., None])
        values = (blocks > least).view(torch.uint8) + 1
        values -= (blocks < least.neg_()).view(torch.uint8)
        return transports.with_scales(transports.packed(values.flatten(1), 2), scale)

    def decode(self, message: Tensor, m: int) -> Tensor:
        values, scale = transports.scales_of(message, m // self.unit)
        blocks = transports.unpacked(values, MEANING).view(len(values), -1, self.unit)
        return blocks.mul_(scale[..., None]).flatten(1)


promise, _build = transports.gathered(Codec, "(N-1) (n/4 + 4 n/block)")


def build(ctx: RankContext, knobs: Knobs) -> Any:
    hook: Any = _build(ctx, knobs)
    hook.claim = "descends" if knobs["clip"] else CLAIM
    return hook
