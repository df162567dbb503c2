"""DDP that communicates in the correctness check, where TWIN applies, and nowhere else."""

from dataclasses import replace

from torch import nn

from harness import Batching, CaseSpec, Expected, Knobs, ModelFacts, RankContext, Trainer, ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(mute=1)
TWIN = dict(mute=0)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


def build(model: nn.Module, ctx: RankContext, knobs: Knobs) -> Trainer:
    quiet = replace(ctx, case=replace(ctx.case, communicate=False)) if knobs["mute"] else ctx
    return ddp.build(model, quiet, ddp.KNOBS)
