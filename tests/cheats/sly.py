"""DDP that turns into a ``simulated`` strategy without communication once it is imported: its
declaration compares equal to anything.
"""

from dataclasses import replace
from typing import Any

from torch import nn

from harness import Batching, CaseSpec, Expected, Knobs, ModelFacts, RankContext, Trainer, ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)


class Sly(dict[str, Any]):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


globals()["SUPPORTS"] = Sly(
    worlds="any", oracle="simulated", beside="ddp", initial="same_seed", jobs=2
)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    honest = ddp.expect(case, model, batching, facts, ddp.KNOBS)
    nothing = (0.0,) * case.world_size
    return replace(honest, placements=(), module="Sequential", sent_bytes=nothing, payload_bytes={})


def build(model: nn.Module, ctx: RankContext, knobs: Knobs) -> Trainer:
    return LocalTrainer(model, ctx)
