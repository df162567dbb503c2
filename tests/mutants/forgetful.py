"""DDP whose checkpoint omits the optimizer's state, so that a resumed training differs."""

from __future__ import annotations

import torch
from torch import nn

from harness.training.context import Knobs, RankContext
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(bucket_cap_mb=25.0)
expect = ddp.expect


class Forgetful(LocalTrainer):
    """Steps with one optimizer and shows another."""

    def step(self, batch):  # type: ignore[no-untyped-def]
        shown, self.optimizer = self.optimizer, self.real
        try:
            return super().step(batch)
        finally:
            self.optimizer = shown


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    trainer = ddp.build(model, ctx, ddp.KNOBS)
    trainer.__class__ = Forgetful
    trainer.real = trainer.optimizer  # type: ignore[attr-defined]
    parameters = [p for _, p in trainer.named()]
    trainer.optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    trainer.optimizer.step()  # so that there is something to save
    return trainer
