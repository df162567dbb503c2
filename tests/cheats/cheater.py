"""DDP that cheats from step 6 on, after the correctness check has passed.

``how``: ``honest``; ``unsynchronised`` keeps the bytes up by an all-reduce of irrelevant data,
``local`` sends nothing; ``half`` trains on half of its samples; ``leader`` uses rank 0's gradient
only; ``idle`` lets the last rank train on nothing; ``cached`` repeats the batch of step 5; ``bf16``
computes in bf16.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.strategies import ddp
from harness.training.strategies.ddp import expect  # noqa: F401
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(bucket_cap_mb=25.0, how="honest")
FIRST = 6


class Cheater(LocalTrainer):
    """Trains as DDP does until it is no longer looked at."""

    how = "honest"
    done = 0
    kept: Batch | None = None

    def step(self, batch: Batch) -> Tensor | None:
        late = self.done >= FIRST
        self.done += 1
        if self.done == FIRST:
            self.kept = batch
        if not late or self.how == "honest":
            return super().step(batch)
        if self.how in ("local", "unsynchronised", "leader"):
            return self._alone(batch)
        if self.how == "bf16":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().step(batch)
        if self.how == "cached":
            assert self.kept is not None
            return super().step(Batch(batch.ids, self.kept.inputs, self.kept.targets))
        half = len(batch.ids) // 2
        if self.how == "idle":
            half = 1 if self.ctx.rank else len(batch.ids)
        return super().step(Batch(batch.ids, batch.inputs[:half], batch.targets[:half]))

    def _alone(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with self.module.no_sync():  # type: ignore[operator]
            loss = self.ctx.loss(self.module(batch.inputs), batch.targets)
            loss.backward()
        grads = [p.grad for _, p in self.named()]
        flat = torch.cat([g.flatten() for g in grads])  # type: ignore[union-attr]
        if self.how == "leader" and self.ctx.rank:
            flat.zero_()
        if self.how != "local":
            dist.all_reduce(flat)
        if self.how == "leader":
            for g, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):  # type: ignore[union-attr]
                g.copy_(part.view_as(g))  # type: ignore[union-attr]
        self.optimizer.step()
        return loss.detach()


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> Cheater:
    plain = ddp.build(model, ctx, {**ddp.KNOBS, "bucket_cap_mb": knobs["bucket_cap_mb"]})
    trainer = Cheater(plain.module, ctx, named=plain.named, synchronise=plain.synchronise)
    trainer.placements, trainer.how = plain.placements, str(knobs["how"])
    return trainer
