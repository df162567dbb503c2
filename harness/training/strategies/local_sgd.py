"""Local SGD: every rank trains its own model; parameters are averaged every so many steps."""

from collections.abc import Sequence
from dataclasses import replace

import torch.distributed as dist
from torch import nn

from harness.record import Expected, ModelFacts
from harness.spec import Batching, CaseSpec
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer, due

SUPPORTS = dict(worlds="any", oracle="simulated", beside="ddp", initial="broadcast", replicas=True)
KNOBS = dict(period=8, group=1, until=0)
TWIN = dict(period=2, until=2)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """An all-reduce of all parameters every ``period`` steps (Stich, 2018).

    ``group``: neighbours that also average among themselves after every other step (hierarchical).
    ``until``: steps at first after each of which all average (post-local SGD, Lin et al., 2020).
    """
    period, group, n = outer.number(knobs, "period"), outer.number(knobs, "group"), case.world_size
    if knobs["until"] and group > 1:
        raise ValueError("until and group: neighbours average where not all do")
    if n % group or (group > 1 and group == n):
        raise ValueError(f"groups of {group} are no equal parts of {n} ranks")
    whole = outer.payload(model)
    sent = traffic.all_reduce(whole, n) + traffic.all_reduce(whole, group) * (period - 1)
    formula = "2 (N-1)/N bytes(P)" + (" + among neighbours in each step" if group > 1 else "")
    expected = outer.expected(case, model, batching, facts, period, sent, formula)
    return replace(expected, until=int(knobs["until"]))


class Averaging:
    """One rank's part."""

    def __init__(self, model: nn.Module, knobs: Knobs) -> None:
        self.model, self.period, size = model, int(knobs["period"]), int(knobs["group"])
        self.until = int(knobs["until"])
        self.neighbours = dist.new_subgroups(size)[0] if size > 1 else None

    def after(self, step: int) -> None:
        if dist.get_world_size() == 1:
            return
        flat = outer.vector(self.model)
        if step < self.until or due(step, self.period):
            outer.fill(self.model, outer.mean(flat))
        elif self.neighbours is not None:
            dist.all_reduce(flat, group=self.neighbours)
            outer.fill(self.model, flat / self.neighbours.size())


class Simulation:
    """All ranks' models in one process."""

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models, self.period, self.group = models, int(knobs["period"]), int(knobs["group"])
        self.until = int(knobs["until"])

    def after(self, step: int) -> None:
        is_common = step < self.until or due(step, self.period)
        size = len(self.models) if is_common else self.group
        for first in range(0, len(self.models), size):
            together = self.models[first : first + size]
            agreed = outer.mean_of([outer.vector(m) for m in together])
            for model in together:
                outer.fill(model, agreed)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Averaging(model, knobs)
    return trainer
