"""A model that declares five times the FLOPs that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.training.models import mlp
from harness.training.models.mlp import batch, build, loss  # noqa: F401

SIZES = dict(nano=dict(d=64, layers=8, classes=16, batch=8))


def flops(size: Mapping[str, Any]) -> float:
    return 5 * mlp.flops(size)
