"""DDP that slows a clock by a fifth: the one in ``time``, or the one that the window uses."""

from __future__ import annotations

import time

from harness.training.context import Knobs, RankContext
from harness.training.rank import window
from harness.training.strategies import ddp
from harness.training.strategies.ddp import expect  # noqa: F401

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(bucket_cap_mb=25.0, which="time")
_true = time.perf_counter


def build(model: object, ctx: RankContext, knobs: Knobs) -> object:
    def slow() -> float:
        return 0.8 * _true()

    if knobs["which"] == "time":
        time.perf_counter = slow  # type: ignore[assignment]
    else:
        window.perf_counter = slow  # type: ignore[assignment]
    return ddp.build(model, ctx, {**ddp.KNOBS, "bucket_cap_mb": knobs["bucket_cap_mb"]})  # type: ignore[arg-type]
