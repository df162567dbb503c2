"""Block-wise fp8 (e4m3) in two phases, scaled by the largest value of each block."""

import torch
from torch import Tensor

from harness.training.transports import Knobs, largest, scales_of, two_phase, with_scales

ERROR_BOUND = 0.1
KNOBS = dict(block=256, feedback=False)
CLAIM = "contracts"
LARGEST = 448.0


class Codec:
    """A codec that sends fp8 as uint8, because collectives do not accept fp8."""

    def __init__(self, knobs: Knobs, _: torch.Generator) -> None:
        self.unit = int(knobs["block"])

    def bytes(self, m: int) -> int:
        return m + 4 * (m // self.unit)

    def encode(self, x: Tensor) -> Tensor:
        blocks = x.view(x.shape[0], -1, self.unit)
        scale = largest(blocks) / LARGEST
        values = (blocks / scale.clamp(min=1e-30)[..., None]).to(torch.float8_e4m3fn)
        return with_scales(values.flatten(1).view(torch.uint8), scale)

    def decode(self, message: Tensor, m: int) -> Tensor:
        values, scale = scales_of(message, m // self.unit)
        blocks = values.contiguous().view(torch.float8_e4m3fn).view(len(values), -1, self.unit)
        return (blocks.float() * scale[..., None]).flatten(1)


promise, build = two_phase(Codec, "2 (N-1)/N n (1 + 4/block)")
