"""Threshold with error feedback: entries of at least a given magnitude, up to a share of all."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.context import RankContext
from harness.training.transports import Knobs, Sparse

ERROR_BOUND = 1.0
#: ``rho``: the share of entries that a message can hold. Further entries are added to the next
#: gradient, and unused space is sent as zeros.
KNOBS = dict(threshold=0.01, rho=0.05, feedback=True)
LOSSLESS = dict(threshold=0.0, rho=1.0)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")

promise = transports.promise


def build(ctx: RankContext, knobs: Knobs) -> Sparse:
    """Return the hook (Strom, 2015), with messages of a fixed size.

    Ranks therefore do not need to exchange sizes.
    """
    least = float(knobs["threshold"])

    def choose(x: Tensor, k: int) -> Tensor:
        magnitude = x.abs()
        exceeds = magnitude >= least
        if int(exceeds.sum()) > k:
            return torch.topk(magnitude, k, sorted=False).indices
        return torch.nonzero(exceeds).flatten()

    return Sparse(ctx, float(knobs["rho"]), choose, bool(knobs["feedback"]))
