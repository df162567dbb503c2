"""Short last batches with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.strategies import ddp, ddp_join
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True, uneven=True
)
KNOBS = dict(bug="none", bucket_cap_mb=25.0)
expect = ddp_join.expect


class Wrong(ddp_join.Joining):
    """One rank's step, with the bug."""

    bug = "none"
    idle = False

    def step(self, batch: Batch) -> Tensor | None:
        self.idle = not len(batch.ids)
        if batch.of and self.bug == "tail_dropped":
            return None
        if batch.of and self.bug == "ranks_alike":  # equal weights, whatever the batch sizes
            shards = self.ctx.batching.shards
            batch = replace(batch, of=max(1, len(batch.ids)) * shards)
        return super().step(batch)

    def update(self) -> None:
        """Join hands on parameters; this is what the optimizer of an idle rank would miss."""
        if not (self.bug == "idle_forget" and self.idle):
            super().update()


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    plain = ddp.build(model, ctx, knobs)
    trainer = Wrong(
        plain.module, ctx, named=plain.named, synchronise=plain.synchronise,
        placements=plain.placements,
    )  # fmt: skip
    trainer.bug = str(knobs["bug"])
    return trainer
