"""An MLP that sleeps for 20 ms per step at every world size, without declaring that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from harness.training.models import mlp
from harness.training.models.mlp import batch, flops  # noqa: F401

SIZES = {"nano": dict(d=64, layers=8, classes=16, batch=8)}


class Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x


def build(size: Mapping[str, Any]) -> nn.Sequential:
    return nn.Sequential(*mlp.build(size), Waits())


def loss(output: Tensor, target: Tensor) -> Tensor:
    return mlp.loss(output, target)
