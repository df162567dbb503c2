"""signSGD: the majority of signs, in two phases; magnitudes are the learning rate's."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.compressors.terngrad import MEANING
from harness.training.transports import Knobs

#: A magnitude that is the learning rate's bounds no error: the direction is what is checked.
ERROR_BOUND = 1e3
#: ``magnitude`` of every element of the gradient.
KNOBS = dict(magnitude=0.01)
CLAIM = "descends"
METHOD = dict(optimizer="sgd")


class Codec:
    """The sign of an element (Bernstein et al., 2018 and 2019), where that of 0 is 0.

    A sign takes two bits. One bit would make +1 of a tie, which half of all votes of two ranks end
    in, and of every row of an embedding that no sample touched.
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
