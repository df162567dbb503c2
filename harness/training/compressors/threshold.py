"""Threshold with error feedback: send entries of at least a given size, up to a fixed number."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.context import RankContext
from harness.training.transports import Knobs, Sparse

ERROR_BOUND = 1.0
#: ``rho`` is the fraction of all entries that a message can hold. Entries that do not fit are added
#: to the next gradient, and unused space is filled with zeros.
KNOBS = dict(threshold=0.01, rho=0.05, feedback=True)
LOSSLESS = dict(threshold=0.0, rho=1.0)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")

promise = transports.promise


def build(ctx: RankContext, knobs: Knobs) -> Sparse:
    """Return the hook (Strom, 2015).

    Its messages have a fixed size, so ranks do not need to exchange sizes.
    """
    least = float(knobs["threshold"])

    def choose(x: Tensor, k: int) -> Tensor:
        magnitude = x.abs()
        exceeds = magnitude >= least
        if int(exceeds.sum()) > k:
            return torch.topk(magnitude, k, sorted=False).indices
        return torch.nonzero(exceeds).flatten()

    return Sparse(ctx, float(knobs["rho"]), choose, bool(knobs["feedback"]))
