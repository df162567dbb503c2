"""The oracle of ranks that train apart for a while: all of them in one process, one after another.

Each has a model and an optimizer of its own; what they exchange is the ``Simulation`` of the
strategy's file, written without any collective. Of large worlds every rank trains its own model
alone (``together``): the others' come from their ranks, so that nobody trains N of them.
"""

import copy
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from harness.training.context import Loaded, RankContext
from harness.training.data import Batch
from harness.training.matrices import carry_outer
from harness.training.parallel.outer import fill, vector
from harness.training.rank.oracle import Oracle


class Simulated(Oracle):
    """Shows the model of one rank: that of its context."""

    def __init__(self, model: nn.Module, loaded: Loaded, ctx: RankContext) -> None:
        super().__init__(model, ctx, parts=ctx.case.accumulate, scale_last=False)
        models = [copy.deepcopy(model) for _ in range(ctx.batching.shards)]
        for worker in models:
            carry_outer(model.parameters(), worker.parameters())
        self.workers = [(m, ctx.optimizer(m.parameters())) for m in models]
        self.weighted = bool(getattr(loaded.strategy, "WEIGHTED", True))
        self.rules = loaded.strategy.Simulation(models, ctx.batching, loaded.knobs(ctx.case))
        self.count = 0
        self.model, self.optimizer = self.workers[ctx.shard]

    def told(self, seen: Sequence[object]) -> None:
        """What each rank has seen of the others, where that depends on what came in."""
        if seen[0] is not None:
            self.rules.seen = seen

    def step(self, shards: Sequence[Batch]) -> float:
        """A step of every worker on its shard, and what they exchange after it; the mean loss."""
        losses = 0.0
        for batch, worker in zip(shards, self.workers, strict=True):
            self.model, self.optimizer = worker
            loss, gradients = self.backward(batch)
            losses += float(loss)
            self.update(gradients)
        self.rules.after(self.count)
        self.count += 1
        self.model, self.optimizer = self.workers[self.ctx.shard]
        return losses / len(shards)

    def together(self, own: Batch) -> float:
        """The same, each rank on its own shard; parameters are exchanged to the bit."""
        loss, gradients = self.backward(own)
        self.update(gradients)
        flat = vector(self.model)
        gathered = [torch.empty_like(flat) for _ in self.workers]
        dist.all_gather(gathered, flat)
        for (model, _), theirs in zip(self.workers, gathered, strict=True):
            fill(model, theirs)
        self.rules.after(self.count)
        self.count += 1
        losses = [torch.zeros_like(loss) for _ in self.workers]
        dist.all_gather(losses, loss)
        return sum(map(float, losses)) / len(losses)
