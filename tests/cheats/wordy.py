"""A model that declares a hundred tokens for each element of a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.training.models.mlp import batch, build, flops, loss  # noqa: F401

SIZES = dict(nano=dict(d=64, layers=8, classes=16, batch=8))


def tokens(size: Mapping[str, Any]) -> int:
    return 100 * int(size["d"])
