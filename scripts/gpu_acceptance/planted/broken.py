"""DDP with injected failures of a device: an error that is reported late, or a hang."""

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
KNOBS = dict(breaks="not")
#: Duration of the hanging kernel in clock cycles of a GPU, about 15 s.
LONG = 30_000_000_000


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Return the expectations of DDP."""
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


class Broken:
    """A trainer that behaves like DDP and fails in its fifth step."""

    def __init__(self, trainer: Trainer, ctx: RankContext, knobs: Knobs) -> None:
        self._trainer, self._device, self._breaks = trainer, ctx.device, knobs["breaks"]
        self._steps = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._trainer, name)

    def step(self, batch: Batch) -> Tensor | None:
        self._steps += 1
        if self._steps == 5 and self._breaks == "index":
            rows = torch.zeros(4, device=self._device)
            rows[torch.tensor([9], device=self._device)].sum()
        elif self._steps == 5 and self._breaks == "memory":
            torch.empty(1 << 45, device=self._device)
        elif self._steps == 5 and self._breaks == "hang":
            torch.cuda._sleep(LONG)
        return self._trainer.step(batch)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> object:
    return Broken(ddp.build(model, ctx, ddp.KNOBS), ctx, knobs)
