"""Elastic averaging SGD: the ranks' models and a common centre are pulled to each other."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer, due

SUPPORTS = dict(recovers=False, worlds="any", oracle="simulated", beside="ddp", initial="broadcast")
#: ``beta`` is the fraction of the distance to the ranks' mean by which the centre moves.
KNOBS = dict(period=8, beta=0.9)
VERSION = 2  # version 1 used 0.25 as ``pull`` for any number of ranks
TWIN = dict(period=2)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect an all-reduce of the ranks' differences to the centre.

    The method is from Zhang, Choromanska and LeCun, 2015.
    """
    period = outer.number(knobs, "period")
    if not 0 < knobs["beta"] <= 1:
        raise ValueError(f"beta is {knobs['beta']}; expected a number above 0 and at most 1")
    sent = traffic.all_reduce(outer.payload(model), case.world_size)
    formula = "2 (N-1)/N bytes(P)"
    return outer.expected(case, model, batching, facts, period, sent, formula, states=1)


class Elastic:
    """The rule that a rank applies after each step. All ranks hold the same copy of the centre."""

    def __init__(self, model: nn.Module, ranks: int, knobs: Knobs) -> None:
        self.model = model
        self.period = int(knobs["period"])
        self.pull = float(knobs["beta"]) / ranks  # the paper's alpha
        self.centre = outer.vector(model)

    def after(self, step: int) -> None:
        if not due(step, self.period):
            return
        mine = outer.vector(self.model)
        away = mine - self.centre
        outer.fill(self.model, mine - self.pull * away)
        if dist.get_world_size() > 1:
            dist.all_reduce(away)
        self.centre += self.pull * away


class Simulation:
    """The reference run, which applies the same rule to the models of all ranks in one process."""

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models = models
        self.period = int(knobs["period"])
        self.pull = float(knobs["beta"]) / len(models)
        self.centre = outer.vector(models[0])

    def after(self, step: int) -> None:
        if not due(step, self.period):
            return
        away = [outer.vector(model) - self.centre for model in self.models]
        for model, off in zip(self.models, away, strict=True):
            outer.fill(model, outer.vector(model) - self.pull * off)
        self.centre = self.centre + self.pull * (outer.mean_of(away) * len(away))


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Elastic(model, ctx.world_size, knobs)
    return trainer
