"""Federated averaging: rounds of local steps, then an average weighted by the ranks' samples."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer, due

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="simulated",
    beside="ddp",
    initial="broadcast",
    replicas=True,
)
KNOBS = dict(period=8)
TWIN = dict(period=2)
WEIGHTED = False  # a rank's loss is the mean over its local samples


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect an all-reduce of all parameters in each round (McMahan et al., 2017)."""
    sent = traffic.all_reduce(outer.payload(model), case.world_size)
    period = outer.number(knobs, "period")
    return outer.expected(case, model, batching, facts, period, sent, "2 (N-1)/N bytes(P)")


class Weighted:
    """The rule that a rank applies after each step: average all models every ``period`` steps.

    The weight of a model is the fraction of all samples that its rank has.
    """

    def __init__(self, model: nn.Module, ctx: RankContext, knobs: Knobs) -> None:
        self.model = model
        self.period = int(knobs["period"])
        micros = ctx.batching.micros
        self.share = micros[ctx.shard] / sum(micros)

    def after(self, step: int) -> None:
        if not due(step, self.period) or dist.get_world_size() == 1:
            return
        flat = outer.vector(self.model) * self.share
        dist.all_reduce(flat)
        outer.fill(self.model, flat)


class Simulation:
    """The reference run, which applies the same rule to the models of all ranks in one process."""

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models = models
        self.period = int(knobs["period"])
        self.shares = [micro / sum(batching.micros) for micro in batching.micros]

    def after(self, step: int) -> None:
        if not due(step, self.period) or len(self.models) == 1:
            return
        parts = [
            outer.vector(module) * share
            for module, share in zip(self.models, self.shares, strict=True)
        ]
        agreed = outer.mean_of(parts) * len(parts)
        for model in self.models:
            outer.fill(model, agreed)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Weighted(model, ctx, knobs)
    trainer.weighted = WEIGHTED
    return trainer
