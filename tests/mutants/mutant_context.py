"""Context parallel with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from harness.training.context import Knobs, RankContext
from harness.training.parallel import attention
from harness.training.strategies import context_parallel
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("cp",), replicas=True,
    needs=("CONTEXT",),
)  # fmt: skip
KNOBS = dict(bug="none", attention="all_gather", balanced=False)
expect, positions = context_parallel.expect, context_parallel.positions


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    bug, rank = knobs["bug"], dist.get_rank()
    visible = attention.visible
    if bug == "future_seen":
        attention.visible = lambda q, k: torch.ones_like(visible(q, k))
    trainer = context_parallel.build(model, ctx, knobs)
    attention.visible = visible
    for name, module in model.named_modules():
        if not name.endswith("attention"):
            continue
        if bug == "own_block_only":
            module.attend = type(module).attend.__get__(module)
        if bug == "positions_from_zero":
            module.positions = module.positions - module.positions.min()
    if bug == "loss_of_one_part":
        plain = trainer.ctx.loss
        object.__setattr__(
            trainer.ctx, "loss", lambda o, t: plain(o, t) * (2.0 if rank == 0 else 0.0)
        )
    return trainer
