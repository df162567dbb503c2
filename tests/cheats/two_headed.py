"""DDP whose declaration differs between reading the file and importing it."""

from torch import nn

from harness import Batching, CaseSpec, Expected, Knobs, ModelFacts, RankContext, Trainer, ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
SUPPORTS |= dict(replicas=False, jobs=2)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


def build(model: nn.Module, ctx: RankContext, knobs: Knobs) -> Trainer:
    return ddp.build(model, ctx, ddp.KNOBS)
