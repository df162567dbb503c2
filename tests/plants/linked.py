"""DDP over a link that takes ``link_ms`` longer, by a sleep in the communication."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec
from harness.record import Category, Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.observe.spans import span
from harness.training.strategies import ddp
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(link_ms=0.0)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """As DDP."""
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """One bucket, so that the sleep is paid once a step."""
    trainer = ddp.build(model, ctx, {**ddp.KNOBS, "bucket_cap_mb": 1024.0})
    slow_s = knobs["link_ms"] / 1e3

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat = bucket.buffer().div_(ctx.world_size)
        with span("link", Category.COMMUNICATION):
            time.sleep(slow_s)
        work = dist.all_reduce(flat, async_op=True)
        return work.get_future().then(lambda f: f.value()[0])

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    trainer.module.register_comm_hook(None, hook)
    return trainer
