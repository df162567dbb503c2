"""Frameworks that silently do less than was configured; each must be detected by name."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch import nn

from harness.cases import Batching, CaseSpec
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.strategies import fsdp
from harness.training.strategies.frameworks import accelerate, deepspeed, lightning_fabric
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("fsdp", "dp"), replicas=True
)
KNOBS = dict(bug="none")
STAGE3 = dict(stage=3)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """What was asked for."""
    bug = str(knobs["bug"])
    if bug == "accelerate_alone":
        return accelerate.expect(case, model, batching, facts, accelerate.KNOBS)
    if bug == "accelerate_fsdp_is_ddp":  # users on CPUs believe that they have FSDP
        like = fsdp.expect(case, model, batching, facts, fsdp.KNOBS)
        return replace(like, placements=("FSDP Shard(dim=0)",))
    if bug == "fabric_default_sizes":
        return lightning_fabric.expect(case, model, batching, facts, dict(sharded=True))
    stage = STAGE3 if bug == "zero3_persists" else dict(stage=2)
    return deepspeed.expect(case, model, batching, facts, stage)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """The framework's own defaults, or a place that it was not told."""
    bug = str(knobs["bug"])
    if bug == "accelerate_alone":
        accelerate.as_torchrun_does = _untold
        return accelerate.build(model, ctx, accelerate.KNOBS)
    if bug == "accelerate_fsdp_is_ddp":
        return accelerate.build(model, ctx, dict(sharded=True))
    if bug == "fabric_default_sizes":
        from lightning.fabric import strategies

        mine = strategies.ModelParallelStrategy
        strategies.ModelParallelStrategy = lambda shard, **sizes: mine(shard)  # type: ignore[misc]
        return lightning_fabric.build(model, ctx, dict(sharded=True))
    plain = deepspeed.config
    if bug == "zero3_persists":

        def defaults(*given: Any) -> dict[str, Any]:
            made = plain(*given)
            for name in [n for n in made["zero_optimization"] if n.startswith("stage3_")]:
                del made["zero_optimization"][name]
            return made

        deepspeed.config = defaults
        return deepspeed.build(model, ctx, STAGE3)

    def clipped(*given: Any) -> dict[str, Any]:
        made = plain(*given)
        made.pop("gradient_clipping", None)  # a default of 1.0 that nobody configured
        return made

    def lower(*given: Any) -> dict[str, Any]:
        made = plain(*given)
        made["zero_optimization"]["stage"] = 1
        return made

    deepspeed.config = clipped if bug == "clips_unasked" else lower
    return deepspeed.build(model, ctx, dict(stage=2))


def _untold(ctx: RankContext) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
