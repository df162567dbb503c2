"""An MLP that sleeps at world size 1. ``asks``: how it finds out the world size."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import get_world_size

from harness.training.models import mlp
from harness.training.models.mlp import batch, flops  # noqa: F401

SIZES = {"nano": dict(d=64, layers=8, classes=16, batch=8)}
KNOBS = dict(asks="nothing")
CALLS: list[int] = []


def alone(asks: str) -> bool:
    if asks == "function":
        return dist.get_world_size() == 1
    if asks == "imported":
        return get_world_size() == 1
    if asks == "group":
        return dist.group.WORLD is not None and dist.group.WORLD.size() == 1
    if asks == "late":  # long after the correctness check has passed
        CALLS.append(1)
        return len(CALLS) > 12 and get_world_size() == 1
    if asks == "variable":
        return os.environ.get("WORLD_SIZE", "1") == "1"
    return False


class Waits(nn.Module):
    def __init__(self, asks: str) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        if alone(self.asks):
            time.sleep(0.002)
        return x


def build(size: Mapping[str, Any]) -> nn.Sequential:
    return nn.Sequential(*mlp.build(size), Waits(size["asks"]))


def loss(output: Tensor, target: Tensor) -> Tensor:
    return mlp.loss(output, target)
