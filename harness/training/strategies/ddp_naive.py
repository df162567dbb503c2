"""An all-reduce for each tensor after backward: a baseline that shows the gain of DDP's buckets."""

from dataclasses import replace

import torch.distributed as dist
from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True, uneven=True
)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the bytes of DDP, but one message per parameter and no overlap with backward."""
    like = ddp.expect(case, model, batching, facts, knobs)
    largest = max(parameter.nbytes for parameter in model.parameters())
    return replace(like, largest_message=float(largest), module=type(model).__name__)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Broadcast rank 0's weights and build a trainer that averages gradients after backward."""
    together = ctx.world_size > 1
    if together:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), src=0)

    def average() -> None:
        for parameter in model.parameters():
            if together and parameter.grad is not None:
                parameter.grad /= ctx.world_size  # like DDP, divide before adding
                dist.all_reduce(parameter.grad)

    return LocalTrainer(model, ctx, average=average, placements=("Replicate",))
