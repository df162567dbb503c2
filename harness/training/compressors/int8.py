"""Block-wise int8 in two phases: all-to-all, sum in fp32, encode again, all-gather."""

import torch
from torch import Tensor

from harness.training.transports import Knobs, largest, scales_of, two_phase, with_scales

ERROR_BOUND = 0.03
KNOBS = dict(block=256, feedback=False)
CLAIM = "contracts"


class Codec:
    """A codec that rounds the elements of a block to multiples of amax / 127.

    ``amax`` is the largest magnitude in the block. The error of an element is at most half of such
    a multiple.
    """

    def __init__(self, knobs: Knobs, _: torch.Generator) -> None:
        self.unit = int(knobs["block"])

    def bytes(self, m: int) -> int:
        return m + 4 * (m // self.unit)

    def encode(self, x: Tensor) -> Tensor:
        blocks = x.view(x.shape[0], -1, self.unit)
        scale = largest(blocks) / 127
        values = (blocks / scale.clamp(min=1e-30)[..., None]).round_().to(torch.int8)
        return with_scales(values.flatten(1).view(torch.uint8), scale)

    def decode(self, message: Tensor, m: int) -> Tensor:
        values, scale = scales_of(message, m // self.unit)
        blocks = values.contiguous().view(torch.int8).view(len(values), -1, self.unit)
        return blocks.float().mul_(scale[..., None]).flatten(1)


promise, build = two_phase(Codec, "2 (N-1)/N n (1 + 4/block)")
