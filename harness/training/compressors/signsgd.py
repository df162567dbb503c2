"""signSGD: a majority vote of signs in two phases; the magnitude is a constant."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.compressors.terngrad import MEANING
from harness.training.transports import Knobs

#: With a constant magnitude the error has no bound, so only the direction is checked.
ERROR_BOUND = 1e3
#: ``magnitude`` is the magnitude of every element of the resulting gradient.
KNOBS = dict(magnitude=0.01)
CLAIM = "descends"
METHOD = dict(optimizer="sgd")


class Codec:
    """A codec of signs in two bits (Bernstein et al., 2018 and 2019); the sign of 0 is 0.

    One bit per sign would turn ties into +1. Ties are frequent: half of the votes of two ranks, and
    all votes on rows of an embedding that no sample uses.
    """

    unit = 4

    def __init__(self, knobs: Knobs, _: torch.Generator) -> None:
        self.magnitude = float(knobs["magnitude"])

    def bytes(self, m: int) -> int:
        return m // 4

    def encode(self, x: Tensor) -> Tensor:
        return transports.packed((x.sign() + 1).to(torch.uint8), 2)

    def decode(self, message: Tensor, m: int) -> Tensor:
        return transports.unpacked(message, MEANING).mul_(self.magnitude)


promise, build = transports.two_phase(Codec, "2 (N-1)/N n/4")
