"""QSGD: unbiased random rounding to levels between 0 and the block's norm, packed in 4 bits."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.transports import Knobs

ERROR_BOUND = 4.0
KNOBS = dict(block=512)
CLAIM = "unbiased"
METHOD = dict(optimizer="sgd")
#: Number of levels above 0. An element has 4 bits: its sign, and three bits for its level.
LEVELS = 7
MEANING = transports.lookup(4, [*range(8), *(-level for level in range(8))])


class Codec:
    """A codec that rounds |x| / norm to a level at random (Alistarh et al., 2017)."""

    def __init__(self, knobs: Knobs, generator: torch.Generator) -> None:
        self.unit = int(knobs["block"])
        self.generator = generator
        if self.unit % 2:
            raise ValueError(
                f"block is {self.unit}; expected an even number, because two values fill a byte"
            )

    def bytes(self, m: int) -> int:
        return m // 2 + 4 * (m // self.unit)

    def encode(self, x: Tensor) -> Tensor:
        blocks = x.view(x.shape[0], -1, self.unit)
        scale = blocks.norm(dim=2) / LEVELS
        level = blocks.abs().div_(scale.clamp(min=1e-30)[..., None])
        level += torch.rand(blocks.shape, generator=self.generator, device=x.device)
        values = level.floor_().clamp_(max=LEVELS).to(torch.uint8)
        values |= (blocks < 0).view(torch.uint8) << 3
        return transports.with_scales(transports.packed(values.flatten(1), 4), scale)

    def decode(self, message: Tensor, m: int) -> Tensor:
        values, scale = transports.scales_of(message, m // self.unit)
        blocks = transports.unpacked(values, MEANING).view(len(values), -1, self.unit)
        return blocks.mul_(scale[..., None]).flatten(1)


promise, build = transports.gathered(Codec, "(N-1) (n/2 + 4 n/block)")
