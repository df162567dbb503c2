"""DDP with Join: ranks without samples take part in the collectives of the other ranks."""

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
    """Expect DDP's bytes.

    The expectation is for full batches. A short batch also sends the flag of ``Join`` and
    broadcasts gradients to the ranks without samples.
    """
    return replace(ddp.expect(case, model, batching, facts, knobs), formula="2 (N-1)/N bytes(P)")


class Joining(LocalTrainer):
    """A trainer that enters ``Join`` in short batches only.

    ``Join`` all-reduces a flag in each step. Full batches do not need the flag.
    """

    def step(self, batch: Batch) -> Tensor | None:
        """Run one step and return the loss, or None on a rank without samples."""
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
        # Join synchronises parameters but not optimizer states. Ranks without samples therefore
        # receive the gradients and step their optimizers, too.
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
