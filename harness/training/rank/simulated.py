"""The oracle of ranks that train apart for a while: all of them in one process, one after another.

Each has a model and an optimizer of its own; what they exchange is the ``Simulation`` of the
strategy's file, written without any collective. One that exchanges gradients, too, has ``before``,
and is told all ``optimizers`` if it has that name. Of large worlds every rank trains its own model
alone (``together``): the others' come from their ranks, so that nobody trains N of them.
"""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.training.context import Loaded, RankContext
from harness.training.data import Batch
from harness.training.matrices import carry_outer
from harness.training.parallel.outer import fill, vector
from harness.training.rank.oracle import Oracle

T = TypeVar("T")


class Simulated(Oracle):
    """Shows the model of one rank: that of its context.

    ``begin``: the rank that sums begin with. They are rounded in their order, so another one gives
    another right training, where an exchange treats all ranks alike.
    """

    def __init__(
        self, model: nn.Module, loaded: Loaded, ctx: RankContext, *, begin: int = 0
    ) -> None:
        super().__init__(model, ctx, parts=ctx.case.accumulate, scale_last=False)
        models = [copy.deepcopy(model) for _ in range(ctx.batching.shards)]
        for worker in models:
            carry_outer(model.parameters(), worker.parameters())
        self.workers = [(module, ctx.optimizer(module.parameters())) for module in models]
        self.weighted = bool(getattr(loaded.strategy, "WEIGHTED", True))
        self.rules = loaded.strategy.Simulation(models, ctx.batching, loaded.knobs(ctx.case))
        if hasattr(self.rules, "optimizers"):
            self.rules.optimizers = [optimizer for _, optimizer in self.workers]
        self.count = 0
        self.begin = begin
        self.place = (ctx.shard - begin) % len(models)
        self.model, self.optimizer = self.workers[self.place]

    def note_seen(self, seen: Sequence[object]) -> None:
        """Notes what each rank has seen of the others, where that depends on what came in."""
        if seen[0] is not None:
            self.rules.seen = seen

    def step(self, shards: Sequence[Batch]) -> float:
        """A step of every worker on its shard, and what they exchange after it; the mean loss."""
        losses = 0.0
        every = []
        self.begin_step()
        for batch, worker in zip(self._in_order(shards), self.workers, strict=True):
            self.model, self.optimizer = worker
            loss, gradients = self.backward(batch)
            losses += float(loss)
            every.append(gradients)
        if hasattr(self.rules, "before"):
            every = self.rules.before(self.count, every)
        for gradients, worker in zip(every, self.workers, strict=True):
            self.model, self.optimizer = worker
            self.update(gradients)
        self.rules.after(self.count)
        self.count += 1
        self.model, self.optimizer = self.workers[self.place]
        return losses / len(shards)

    def together(self, batch: Batch) -> float:
        """Trains with each rank on its own shard; parameters are exchanged to the bit."""
        self.begin_step()
        loss, gradients = self.backward(batch)
        if hasattr(self.rules, "before"):
            of_all = zip(*(self._from_all(gradient) for gradient in gradients), strict=True)
            gradients = self.rules.before(self.count, list(of_all))[self.place]
        self.update(gradients)
        every = self._from_all(vector(self.model))
        for (model, _), theirs in zip(self.workers, every, strict=True):
            fill(model, theirs)
        self.rules.after(self.count)
        self.count += 1
        losses = self._from_all(loss)
        return sum(map(float, losses)) / len(losses)

    def _from_all(self, gradient: Tensor) -> list[Tensor]:
        """Every rank's, in the order of sums."""
        every = [torch.empty_like(gradient) for _ in self.workers]
        dist.all_gather(every, gradient)
        return self._in_order(every)

    def _in_order(self, by_rank: Sequence[T]) -> list[T]:
        return [*by_rank[self.begin :], *by_rank[: self.begin]]
