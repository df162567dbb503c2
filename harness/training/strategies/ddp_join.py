"""DDP with Join: ranks without samples shadow the collectives of those that have some left."""

from dataclasses import replace
from typing import cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable

from harness.cases import Batching, CaseSpec
from harness.record import Category, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.observe.spans import span
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any",
    oracle="shard_ordered",
    initial="broadcast",
    replicas=True,
    buffers="broadcast",
    uneven=True,
)
KNOBS = dict(bucket_cap_mb=25.0)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """DDP's bytes; in a short batch a flag that there are samples left, and gradients to those
    ranks that have none.
    """
    return replace(ddp.expect(case, model, batching, facts, knobs), formula="2 (N-1)/N bytes(P)")


class Joining(LocalTrainer):
    """Joins in short batches only: the flag that ``Join`` all-reduces is a message in each step."""

    def step(self, batch: Batch) -> Tensor | None:
        """The step of all; a rank without samples has no loss."""
        if not batch.of:
            return super().step(batch)
        total = None
        self.optimizer.zero_grad(set_to_none=True)
        with Join([cast(Joinable, self.module)]):
            if len(batch.ids):
                weight = self.ctx.batching.weight(len(batch.ids), batch.of)
                with self.ctx.forward():
                    loss = self.ctx.loss(self.module(batch.inputs), batch.targets) * weight
                loss.backward()
                total = loss.detach()
        # Join hands on parameters, but not what optimizers remember: all step, on one gradient.
        with span("to the idle", Category.COMMUNICATION):
            for _, parameter in self.named():
                if parameter.grad is None:
                    parameter.grad = parameter.new_zeros(parameter.shape)
                if self.ctx.world_size > 1:
                    dist.broadcast(parameter.grad, src=0)
        self.update()
        return total


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    plain = ddp.build(model, ctx, knobs)
    return Joining(
        plain.module,
        ctx,
        named=plain.named,
        synchronise=plain.synchronise,
        placements=plain.placements,
    )
