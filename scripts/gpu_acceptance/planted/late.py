"""DDP with an injected sleep on the host, or additional kernels, which a timeline must show."""

import time

import torch
from torch import Tensor, nn

from harness import (
    Batch,
    Batching,
    CaseSpec,
    Expected,
    Knobs,
    ModelFacts,
    RankContext,
    Trainer,
    ddp,
)

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(sleep_ms=0.0, products=0)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Return the expectations of DDP."""
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


class Late:
    """A trainer that behaves like DDP, but sleeps or multiplies matrices before each step."""

    def __init__(self, trainer: Trainer, ctx: RankContext, knobs: Knobs) -> None:
        self._trainer, self._knobs = trainer, knobs
        size = 2048 if ctx.device.type == "cuda" else 256
        self._matrix = torch.ones(size, size, device=ctx.device)

    def __getattr__(self, name: str) -> object:
        return getattr(self._trainer, name)

    def step(self, batch: Batch) -> Tensor | None:
        time.sleep(self._knobs["sleep_ms"] / 1e3)
        for _ in range(self._knobs["products"]):
            torch.mm(self._matrix, self._matrix)
        return self._trainer.step(batch)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> object:
    return Late(ddp.build(model, ctx, ddp.KNOBS), ctx, knobs)
