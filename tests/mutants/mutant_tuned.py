"""DDP that omits a kernel or memory option that its case sets; ``bug="none"`` is correct."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from harness.cases import Precision
from harness.training.context import Knobs, RankContext
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True,
    precisions=("fp32", "bf16", "autocast", "fp16", "fp8"),
)  # fmt: skip
KNOBS = dict(bug="none", bucket_cap_mb=25.0)
expect = ddp.expect


class Early(LocalTrainer):
    """Steps before gradients are what they were before their losses were scaled."""

    def update(self) -> None:
        self.optimizer.step()


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    bug = knobs["bug"]
    if bug == "fell_back":  # as compiled and 8-bit blocks do where torch has no kernel
        for module in model.modules():
            vars(module).pop("forward", None)
    if bug == "unwrapped":
        for child in model.children():
            if isinstance(child, CheckpointWrapper):
                child.forward = child._checkpoint_wrapped_module.forward
    if bug == "other_kernel":
        for kernel in ("flash", "mem_efficient", "math"):
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(True)
    if bug == "not_cast":
        ctx = replace(ctx, case=replace(ctx.case, precision=Precision.FP32))
    trainer = ddp.build(model, ctx, {"bucket_cap_mb": knobs["bucket_cap_mb"]})
    if bug == "other_optimizer":
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    if bug == "stepped_first":
        early = Early(
            trainer.module, ctx, named=trainer.named, synchronise=trainer.synchronise,
            placements=trainer.placements,
        )  # fmt: skip
        return early
    return trainer
