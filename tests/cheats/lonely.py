"""Ranks that train independently, with a simulation that has the same mistake.

``how``: ``silent`` never averages; ``pairs`` averages over two ranks only; ``asleep`` averages,
but updates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from harness.training.parallel import outer, traffic

SUPPORTS = dict(recovers=False, worlds="any", oracle="simulated", beside="ddp", initial="broadcast")
KNOBS = dict(how="silent")


def expect(case: Any, model: Any, batching: Any, facts: Any, knobs: Mapping[str, Any]) -> Any:
    alike = {"silent": 1, "pairs": 2, "asleep": case.world_size}[knobs["how"]]
    sent = traffic.all_reduce(outer.payload(model), alike)
    return outer.expected(case, model, batching, facts, 1, sent, "an all-reduce of all parameters")


class Averaging:
    """One rank's part."""

    def __init__(self, model: nn.Module, how: str) -> None:
        self.model, self.how = model, how
        self.pair = dist.new_subgroups(2)[0] if how == "pairs" else None
        self.start = outer.vector(model)

    def after(self, step: int) -> None:
        if self.how == "silent":
            return
        if self.how == "asleep":
            outer.fill(self.model, self.start)
        flat = outer.vector(self.model)
        dist.all_reduce(flat, group=self.pair)
        outer.fill(self.model, flat / dist.get_world_size(self.pair))


class Simulation:
    """All ranks' models in one process."""

    def __init__(
        self, models: Sequence[nn.Module], batching: Any, knobs: Mapping[str, Any]
    ) -> None:
        self.models, self.how = models, knobs["how"]
        self.start = outer.vector(models[0])

    def after(self, step: int) -> None:
        if self.how == "asleep":
            for model in self.models:
                outer.fill(model, self.start)
        if self.how == "pairs":
            for first in range(0, len(self.models), 2):
                pair = self.models[first : first + 2]
                mean = torch.stack([outer.vector(m) for m in pair]).mean(0)
                for model in pair:
                    outer.fill(model, mean)


def build(model: Any, ctx: Any, knobs: Mapping[str, Any]) -> Any:
    trainer = outer.trainer(model, ctx)
    trainer.rule = Averaging(model, str(knobs["how"]))
    return trainer
