"""Data parallelism without a wrapper: one all-reduce per parameter after the backward pass."""

from dataclasses import replace

import torch.distributed as dist

from harness import LocalTrainer, ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)


def expect(case, model, batching, facts, knobs):  # the communication that the checks must count
    as_ddp = ddp.expect(case, model, batching, facts, ddp.KNOBS)
    return replace(as_ddp, module="Sequential", placements=())


def build(model, ctx, knobs):
    for p in model.parameters():
        dist.broadcast(p.data, 0)

    def average(*_):
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= ctx.world_size

    trainer = LocalTrainer(model, ctx)
    trainer.optimizer.register_step_pre_hook(average)
    return trainer
