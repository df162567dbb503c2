"""Local SGD: each rank trains a separate model; parameters are averaged in regular steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts, exchanges
from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer, traffic
from harness.training.parallel.outer import OuterTrainer

SUPPORTS = dict(
    recovers=False,
    worlds="any",
    oracle="simulated",
    beside="ddp",
    initial="broadcast",
    replicas=True,
)
KNOBS = dict(period=8, group=1, until=0, growth=1.0)
TWIN = dict(period=2, until=1)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect an all-reduce of all parameters every ``period`` steps (Stich, 2018).

    Hierarchical local SGD: after each other step, groups of ``group`` adjacent ranks average among
    themselves. Post-local SGD (Lin et al., 2020): all ranks average after each of the first
    ``until`` steps. Growing periods (Haddadpour et al., 2019): each period is ``growth`` times as
    long as the period before it.
    """
    period = outer.number(knobs, "period")
    group = outer.number(knobs, "group")
    n = case.world_size
    if (knobs["until"] or knobs["growth"] != 1) and group > 1:
        raise ValueError(f"group={group} is supported with until=0 and growth=1 only")
    if knobs["growth"] < 1:
        raise ValueError(
            f"growth is {knobs['growth']}; expected at least 1, because periods must not shrink"
        )
    if n % group or (group > 1 and group == n):
        raise ValueError(f"group={group} does not divide {n} ranks into several equal groups")
    whole = outer.payload(model)
    sent = traffic.all_reduce(whole, n) + traffic.all_reduce(whole, group) * (period - 1)
    formula = "2 (N-1)/N bytes(P)" + (" + the same in each group every step" if group > 1 else "")
    expected = outer.expected(case, model, batching, facts, period, sent, formula)
    return replace(expected, until=int(knobs["until"]), growth=float(knobs["growth"]))


def _talks(knobs: Knobs) -> Callable[[int], bool]:
    """Return a function that takes a step and returns whether all ranks average after it."""
    period, until, growth = (knobs[name] for name in ("period", "until", "growth"))
    return lambda step: exchanges(range(step, step + 1), period, until, growth) == 1


class Averaging:
    """The rule that a rank applies after each step: average over all ranks or over its group."""

    def __init__(self, model: nn.Module, knobs: Knobs) -> None:
        self.model = model
        self.talks = _talks(knobs)
        size = int(knobs["group"])
        self.neighbours = dist.new_subgroups(size)[0] if size > 1 else None

    def after(self, step: int) -> None:
        if dist.get_world_size() == 1:
            return
        flat = outer.vector(self.model)
        if self.talks(step):
            outer.fill(self.model, outer.mean(flat))
        elif self.neighbours is not None:
            dist.all_reduce(flat, group=self.neighbours)
            outer.fill(self.model, flat / self.neighbours.size())


class Simulation:
    """The reference run, which applies the same rule to the models of all ranks in one process."""

    def __init__(self, models: Sequence[nn.Module], batching: Batching, knobs: Knobs) -> None:
        self.models = models
        self.talks = _talks(knobs)
        self.group = int(knobs["group"])

    def after(self, step: int) -> None:
        size = len(self.models) if self.talks(step) else self.group
        for first in range(0, len(self.models), size):
            together = self.models[first : first + size]
            agreed = outer.mean_of([outer.vector(module) for module in together])
            for model in together:
                outer.fill(model, agreed)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Averaging(model, knobs)
    return trainer
