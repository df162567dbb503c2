"""DiLoCo with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

from torch import nn

from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer
from harness.training.parallel.outer import OuterTrainer, due
from harness.training.strategies import diloco

SUPPORTS = dict(worlds="any", oracle="simulated", beside="ddp", initial="broadcast", replicas=True)
KNOBS = dict(bug="none", period=8, rate=0.7, momentum=0.9, quantised=False)
TWIN = dict(period=2)
Simulation, expect = diloco.Simulation, diloco.expect


class Wrong(diloco.Deltas):
    """One rank's part, with the bug."""

    bug = "none"

    def after(self, step: int) -> None:
        if self.bug == "parameters_for_deltas" and due(step, self.period):
            outer.fill(self.model, outer.mean(outer.vector(self.model)))
        elif self.bug == "never_agrees":
            return
        elif self.bug == "momentum_forgotten":
            self.outer.velocity.zero_()
            super().after(step)
        elif self.bug == "every_step":
            super().after(self.period - 1)
        elif self.bug == "one_percent_short" and due(step, self.period):
            moved = outer.mean(self.outer.agreed - outer.vector(self.model))
            outer.fill(self.model, self.outer.step(0.99 * moved))
        else:
            super().after(step)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Wrong(model, knobs)
    trainer.rule.bug = str(knobs["bug"])
    return trainer
