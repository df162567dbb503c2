"""DDP that declares a reason why its losses may differ from the reference."""

from dataclasses import replace

from torch import nn

from harness import Batching, CaseSpec, Expected, Knobs, ModelFacts, RankContext, Trainer, ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(claims="repeatable")


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    honest = ddp.expect(case, model, batching, facts, ddp.KNOBS)
    claims = {
        "repeatable": dict(repeatable=False),
        "casts": dict(casts=True),
        "reorders": dict(reorders=True),
        "ideal": dict(ideal_efficiency=0.3),
        "nothing": {},
    }
    return replace(honest, **claims[str(knobs["claims"])])


def build(model: nn.Module, ctx: RankContext, knobs: Knobs) -> Trainer:
    return ddp.build(model, ctx, ddp.KNOBS)
