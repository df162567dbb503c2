"""Natural compression: unbiased random rounding to a neighbouring power of two, in one byte."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.transports import Knobs

ERROR_BOUND = 0.5
KNOBS: dict[str, int] = {}
CLAIM = "unbiased"
METHOD = dict(optimizer="sgd")
#: Offset that is subtracted from fp32 exponents to get seven-bit codes. Numbers with exponents up
#: to it become 0, and numbers that are too large get the largest code.
LOWEST = 127 - 100


class Codec:
    """A codec that keeps the sign and seven bits of exponent (Horvath et al., 2022).

    The paper keeps nine bits in total.
    """

    unit = 1

    def __init__(self, _: Knobs, generator: torch.Generator) -> None:
        self.generator = generator

    def bytes(self, m: int) -> int:
        return m

    def encode(self, x: Tensor) -> Tensor:
        bits = x.contiguous().view(torch.int32)
        drawn = torch.randint(
            1 << 23, x.shape, generator=self.generator, device=x.device, dtype=torch.int32
        )
        # Adding a random number to the mantissa increments the exponent with a probability that is
        # proportional to the mantissa.
        exponent = (((bits & 0x7FFFFFFF) + drawn) >> 23) - LOWEST
        sign = (bits >> 24) & 0x80
        return (exponent.clamp_(0, 127) | sign).to(torch.uint8)

    def decode(self, message: Tensor, m: int) -> Tensor:
        code = message.int()
        exponent = code & 0x7F
        bits = ((exponent + LOWEST) << 23) | ((code & 0x80) << 24)
        return torch.where(exponent > 0, bits, 0).view(torch.float32)


promise, build = transports.gathered(Codec, "(N-1) n")
