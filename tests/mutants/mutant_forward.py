"""DDP with its own forward pass and one injected bug; ``bug="none"`` is correct and must pass."""

import torch
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.data import Batch
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", forward=True)
KNOBS = dict(bug="none")


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """DDP's trainer, whose forward pass is spoilt."""
    trainer, bug = ddp.build(model, ctx, ddp.KNOBS), knobs["bug"]
    right = trainer.forward
    done: list[Tensor] = []

    def forward(batch: Batch) -> Tensor:
        if bug == "once" and done:
            return done[0]
        done.append(right(batch))
        if bug == "trains":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.999)
        if bug == "sends":
            torch.distributed.all_reduce(torch.zeros(100))
        return done[-1]

    trainer.forward = forward  # type: ignore[method-assign]
    return trainer
