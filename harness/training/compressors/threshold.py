"""Threshold with error feedback: entries of a magnitude and above, up to a share of all."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.context import RankContext
from harness.training.transports import Knobs, Sparse

ERROR_BOUND = 1.0
#: ``rho`` is the room for entries: more are owed, and what is not needed is sent as zeros.
KNOBS = dict(threshold=0.01, rho=0.05, feedback=True)
LOSSLESS = dict(threshold=0.0, rho=1.0)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")

promise = transports.promise


def build(ctx: RankContext, knobs: Knobs) -> Sparse:
    """Strom, 2015; with room of a fixed size, so that no sizes need exchanging."""
    least = float(knobs["threshold"])

    def choose(x: Tensor, k: int) -> Tensor:
        magnitude = x.abs()
        exceeds = magnitude >= least
        if int(exceeds.sum()) > k:
            return torch.topk(magnitude, k, sorted=False).indices
        return torch.nonzero(exceeds).flatten()

    return Sparse(ctx, float(knobs["rho"]), choose, bool(knobs["feedback"]))
