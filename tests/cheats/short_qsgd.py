"""QSGD that returns 1 % less than it should, and claims to be unbiased."""

from __future__ import annotations

from torch import Tensor

from harness.training import transports
from harness.training.compressors import qsgd

ERROR_BOUND = 4.0
KNOBS = dict(block=512)
CLAIM = "unbiased"


class Short(qsgd.Codec):
    def decode(self, message: Tensor, m: int) -> Tensor:
        return super().decode(message, m).mul_(0.99)


promise, build = transports.gathered(Short, "(N-1) (n/2 + 4 n/block)")
