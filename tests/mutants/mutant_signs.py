"""0/1 Adam with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer
from harness.training.parallel.outer import OuterTrainer
from harness.training.strategies import zero_one_adam

SUPPORTS = dict(worlds="any", oracle="simulated", beside="ddp", initial="broadcast", replicas=True)
KNOBS = dict(bug="none", period=4, until=16, kappa=16, block=1024)
TWIN = dict(period=2, until=1)
Simulation, expect = zero_one_adam.Simulation, zero_one_adam.expect


class Wrong(zero_one_adam.Exchange):
    """Signs of what was moved, with the bug."""

    bug = "none"

    def mean(self, moved: Tensor) -> Tensor:
        if self.bug == "owes_nothing":
            self.owed = 0.0
        elif self.bug == "sums_owe_nothing":
            self.owed_of_sums = 0.0
        elif self.bug == "one_left_out" and dist.get_rank() == 1:
            moved = torch.zeros_like(moved)
        elif self.bug == "tenth_left_out":
            moved = moved.clone()
            moved[-(len(moved) // 10) :] = 0
        mean = super().mean(moved)
        if self.bug == "times_1_2":
            mean = mean * 1.2
        return mean * self.world if self.bug == "sum_for_mean" else mean


class Moved(zero_one_adam.Moved):
    def average(self) -> None:
        if self.exchange.bug != "variance_of_one_rank":  # type: ignore[attr-defined]
            super().average()

    def after(self, step: int) -> None:
        if self.exchange.bug == "a_step_early":  # type: ignore[attr-defined]
            step += step > 0
        super().after(step)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    rule = Moved(model, trainer.optimizer, knobs)
    rule.exchange = Wrong(len(rule.agreed), rule.world, int(knobs["block"]))
    rule.exchange.bug = str(knobs["bug"])
    trainer.rule = rule
    trainer.average = rule.average
    return trainer
