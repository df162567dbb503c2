"""signSGD: the majority of signs, in two phases; magnitudes are the learning rate's."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.compressors.onebit import SIGNS
from harness.training.transports import Knobs

ERROR_BOUND = 16.0
#: ``magnitude`` of every element of the gradient.
KNOBS = dict(magnitude=0.01)
CLAIM = "descends"


class Codec:
    """A bit an element (Bernstein et al., 2019)."""

    unit = 8

    def __init__(self, knobs: Knobs, _: torch.Generator) -> None:
        self.magnitude = float(knobs["magnitude"])

    def bytes(self, m: int) -> int:
        return m // 8

    def encode(self, x: Tensor) -> Tensor:
        return transports.packed((x >= 0).view(torch.uint8), 1)

    def decode(self, message: Tensor, m: int) -> Tensor:
        return transports.unpacked(message, SIGNS).mul_(self.magnitude)


promise, build = transports.two_phase(Codec, "2 (N-1)/N n/8")
