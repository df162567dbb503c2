"""A parameter server with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch import nn

from harness.training.context import Knobs, RankContext
from harness.training.parallel import outer
from harness.training.parallel.outer import OuterTrainer
from harness.training.strategies import parameter_server

SUPPORTS = dict(worlds="any", oracle="simulated", beside="ddp", initial="broadcast")
KNOBS = dict(bug="none", staleness=0, bounded=True)
Simulation, expect = parameter_server.Simulation, parameter_server.expect


class Wrong(parameter_server.Worker):
    """One rank's part, with the bug."""

    bug = "none"

    def after(self, step: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        late = self.bug == "not_waited"  # the last rank sends only after the first has its answer
        if late and self.rank == self.ranks - 1:
            store.wait([f"answered{self.number}.{step}"])
        if self.bug == "sent_twice" and self.rank == 1:
            outer.fill(self.model, 2 * outer.vector(self.model) - self.shown)
        super().after(step)
        if late and self.rank == 0:
            store.set(f"answered{self.number}.{step}", "")


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> OuterTrainer:
    trainer = outer.trainer(model, ctx, parameter_server.ServedTrainer)
    bug = str(knobs["bug"])
    settings = {**knobs, "bounded": False} if bug == "not_waited" else knobs
    trainer.rule = Wrong(model, ctx, settings)
    trainer.rule.bug = bug
    assert bug != "not_waited" or parameter_server._SERVERS[-1].staleness == math.inf
    return trainer
