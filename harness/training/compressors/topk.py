"""Top-k by magnitude with error feedback: an all-gather of values and int32 indices."""

import torch
from torch import Tensor

from harness.training import transports
from harness.training.context import RankContext
from harness.training.transports import Knobs, Sparse

ERROR_BOUND = 1.0
KNOBS = dict(rho=0.01, feedback=True)
LOSSLESS = dict(rho=1.0)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")

promise = transports.promise


def select(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest magnitudes."""
    return torch.topk(x.abs(), k, sorted=False).indices


def build(ctx: RankContext, knobs: Knobs) -> Sparse:
    """Return the hook (Stich, Cordonnier and Jaggi, 2018)."""
    return Sparse(ctx, float(knobs["rho"]), select, bool(knobs["feedback"]))
