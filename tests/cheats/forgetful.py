"""Top-k that drops its error feedback after twenty calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.training import transports

ERROR_BOUND = 1.0
KNOBS = dict(rho=0.05, feedback=True)
LOSSLESS = dict(rho=1.0)
CLAIM = "contracts"
promise = transports.promise


class Forgetful(transports.Sparse):
    calls = 0

    def __call__(self, bucket: Any) -> Any:
        self.calls += bucket.is_last()
        if self.calls > 20 and self.feedback is not None:
            self.feedback.owed.clear()
        return super().__call__(bucket)


def build(ctx: Any, knobs: Mapping[str, Any]) -> Forgetful:
    def choose(x: torch.Tensor, k: int) -> torch.Tensor:
        return torch.topk(x.abs(), k, sorted=False).indices

    return Forgetful(ctx, float(knobs["rho"]), choose, bool(knobs["feedback"]))
