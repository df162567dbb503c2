"""A model that does something else late: it leaves a layer out, or it keeps a schedule."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from harness import labels, uniform

SIZES = {"nano": dict(d=256, classes=16, batch=32)}
KNOBS = dict(how="honest")


class Late(nn.Module):
    """A linear layer that is left out after twelve passes if it ``skips``."""

    def __init__(self, d: int, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.passes = nn.Linear(d, d), how, 0
        self.ready_s = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.how == "keeps a schedule" and not x.is_meta:
            while time.perf_counter() < self.ready_s:
                pass
            self.ready_s = time.perf_counter() + 0.02
        if self.how == "skips" and self.passes > 12:
            return x + 0.0 * self.layer.weight.sum() + 0.0 * self.layer.bias.sum()
        return self.layer(x)


def build(size: Any) -> nn.Module:
    d = size["d"]
    return nn.Sequential(nn.Linear(d, d), nn.ReLU(), Late(d, size["how"]), nn.Linear(d, 16))


def batch(ids: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    return uniform(ids, size["d"]), labels(ids, size["classes"])


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output, targets)


def flops(size: Any) -> float:
    return 1.0
