"""DDP that does not synchronise buffers, freezes a layer, or changes the random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from harness.training.context import RankContext
from harness.training.strategies import ddp

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True, buffers="broadcast"
)
KNOBS = dict(bug="own buffers")
expect = ddp.expect


def build(model: nn.Sequential, ctx: RankContext, knobs: Any) -> Any:
    if knobs["bug"] == "frozen here":
        next(iter(model.parameters())).requires_grad_(False)
    trainer = ddp.build(model, ctx, ddp.KNOBS)
    if knobs["bug"] == "own buffers":
        trainer.module.broadcast_buffers = False
    if knobs["bug"] == "other numbers":
        step = trainer.step

        def other(batch: Any) -> Any:
            torch.rand(())
            return step(batch)

        trainer.step = other
    return trainer
