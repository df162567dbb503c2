"""Sharded data parallel with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from harness.training.context import Knobs, RankContext
from harness.training.parallel import norms
from harness.training.strategies import fsdp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("fsdp", "dp"), replicas=True
)
KNOBS = dict(
    bug="none", reshard=True, reshard_to=0, scatter="own", prefetch=0, offload=False, mixed=False
)
expect = fsdp.expect


class Silent:
    """``torch.distributed`` for FSDP, but replicas keep to themselves."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, *_: Any, **__: Any) -> None: ...


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    trainer, bug = fsdp.build(model, ctx, knobs), knobs["bug"]
    for block in model.children():
        if bug == "summed":
            block.set_force_sum_reduction_for_comms(True)
            block.set_gradient_divide_factor(1.0)
        if bug == "gathered_twice":
            block.register_forward_pre_hook(
                lambda module, _: module.reshard() or (module.unshard() and None)
            )
    if bug == "replicas_apart":
        _fsdp_collectives.dist = Silent()
    if bug == "norm_of_own_shard":
        norms._holders = lambda parameter: ()
    if bug == "norm_of_own_shard":
        norms._holders = lambda parameter: ()
    if bug == "one_shard_stays":
        plain = trainer.optimizer.step

        def step() -> None:
            if dist.get_rank() != 1:
                plain()

        trainer.optimizer.step = step  # type: ignore[method-assign]
    return trainer
