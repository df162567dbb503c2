"""A pipeline with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from harness.training.context import Knobs, RankContext
from harness.training.strategies import pipeline

SUPPORTS = dict(
    worlds="any", oracle="micro_batched", parts="microbatches", initial="same_seed",
    dims=("pp", "dp"), replicas=True,
)  # fmt: skip
KNOBS = dict(bug="unscaled", schedule="gpipe", microbatches=8, split="flops", sequence=False)

expect = pipeline.expect


class Silent:
    """``torch.distributed`` for FSDP, but replicas keep to themselves."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, *_: Any, **__: Any) -> None: ...


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> pipeline.PipelineTrainer:
    trainer = pipeline.PipelineTrainer(model, ctx, knobs)
    bug, last = knobs["bug"], trainer.last
    if bug == "unscaled":
        trainer.schedule.scale_grads = False
    if bug == "stale" and last:  # it trains on the activations of the previous micro-batch
        before: list[Any] = []

        def older(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            before.append(given[0].detach().clone())
            fresh = given[0]
            return (fresh + (before[max(0, len(before) - 2)] - fresh).detach(),)

        trainer.blocks[0].register_forward_pre_hook(older)
    if bug == "norm_of_own_stage":
        trainer.optimizer = ctx.optimizer(p for _, p in trainer.named())
    if bug == "replicas_apart":  # each replica steps on its own gradient
        _fsdp_collectives.dist = Silent()
    return trainer
