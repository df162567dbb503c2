"""DDP that trains too little from step 6 on, and reports the loss of all its samples.

``how``: ``frozen`` stops updating; ``half`` learns from half of its samples; ``top`` trains the
last layers only; ``stale`` uses the gradients of the previous step; ``slow`` halves the learning
rate; ``forgetful`` loses its moments every six steps; ``lazy`` omits every tenth update.
"""

from __future__ import annotations

from torch import Tensor, nn

from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.strategies import ddp
from harness.training.strategies.ddp import expect  # noqa: F401
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any",
    oracle="shard_ordered",
    initial="broadcast",
    replicas=True,
    precisions=("fp32", "bf16", "autocast"),
)
KNOBS = dict(bucket_cap_mb=25.0, how="honest")
FIRST = 6


class Undertrained(LocalTrainer):
    """All bytes are sent, all samples are computed, all replicas are equal."""

    how = "honest"
    done = 0
    before: list[Tensor] | None = None

    def step(self, batch: Batch) -> Tensor | None:
        late = self.done >= FIRST
        self.done += 1
        self.optimizer.zero_grad(set_to_none=True)
        few = slice(len(batch.ids) // 2 if late and self.how == "half" else None)
        with self.ctx.forward():
            outputs = self.module(batch.inputs)
            loss = self.ctx.loss(outputs, batch.targets)
            learnt = self.ctx.loss(outputs[few], batch.targets[few])
        learnt.backward()
        grads = [p.grad for _, p in self.named()]
        now = [g.clone() for g in grads if g is not None]
        if late:
            self._spoil([g for g in grads if g is not None])
        self.before = now
        skipped = self.how == "lazy" and self.done % 10 == 0
        if not late or not (self.how == "frozen" or skipped):
            self.optimizer.step()
        return loss.detach()

    def _spoil(self, grads: list[Tensor]) -> None:
        if self.how == "top":
            for g in grads[:-4]:
                g.zero_()
        if self.how == "stale" and self.before is not None:
            for g, old in zip(grads, self.before, strict=True):
                g.copy_(old)
        if self.how == "slow" and self.done == 10:
            for group in self.optimizer.param_groups:
                group["lr"] /= 2
        if self.how == "forgetful" and self.done % 6 == 0:
            self.optimizer.state.clear()


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> Undertrained:
    plain = ddp.build(model, ctx, {**ddp.KNOBS, "bucket_cap_mb": knobs["bucket_cap_mb"]})
    trainer = Undertrained(plain.module, ctx, named=plain.named, synchronise=plain.synchronise)
    trainer.placements, trainer.how = plain.placements, str(knobs["how"])
    return trainer
