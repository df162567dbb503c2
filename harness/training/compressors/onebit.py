"""1-bit in two phases with error feedback in both: each element's sign, and a scale per block."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.transports import Knobs

ERROR_BOUND = 1.5
KNOBS = dict(block=1024, feedback=True)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")
SIGNS = transports.lookup(1, (-1.0, 1.0))


class Codec:
    """A codec that sends signs and the mean magnitude of each block.

    The method is from Seide et al., 2014, and Tang et al., 2021.
    """

    def __init__(self, knobs: Knobs, _: torch.Generator) -> None:
        self.unit = int(knobs["block"])
        if self.unit % 8:
            raise ValueError(
                f"block is {self.unit}; expected a multiple of 8, because signs fill whole bytes"
            )

    def bytes(self, m: int) -> int:
        return m // 8 + 4 * (m // self.unit)

    def encode(self, x: Tensor) -> Tensor:
        scale = x.view(x.shape[0], -1, self.unit).abs().mean(2)
        return transports.with_scales(transports.packed((x >= 0).view(torch.uint8), 1), scale)

    def decode(self, message: Tensor, m: int) -> Tensor:
        signs, scale = transports.scales_of(message, m // self.unit)
        blocks = transports.unpacked(signs, SIGNS).view(len(signs), -1, self.unit)
        return blocks.mul_(scale[..., None]).flatten(1)


promise, build = transports.two_phase(Codec, "2 (N-1)/N (n/8 + 4 n/block)")
