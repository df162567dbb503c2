"""Whether an input hands out the samples that a rank is to train on, and each of them once."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from harness.record import Check
from harness.training.context import Loaded, RankContext, own_batch
from harness.training.data import Sampler
from harness.training.rank import counted
from harness.training.rank.counted import STEPS
from harness.training.rank.setup import Rank

STEPS_PER_EPOCH = 2  # so that the gate crosses an epoch


def checks(loaded: Loaded, ctx: RankContext, rank: Rank) -> Iterator[Check]:
    """The case's own input over two epochs: content as the samples' numbers say, all of it."""
    whole = replace(ctx.batching, last=ctx.batching.global_batch)
    sampler = Sampler(whole, steps_per_epoch=STEPS_PER_EPOCH, seed=ctx.case.seed)
    feed = loaded.feed(rank.source(loaded, ctx, STEPS, sampler=sampler))
    drawn = []
    wrong = 0
    for step in range(STEPS):
        batch = feed(step)
        wanted = own_batch(loaded, ctx, batch.ids)
        same = torch.equal(batch.inputs, wanted.inputs)
        wrong += not (same and torch.equal(batch.targets, wanted.targets))
        drawn.append(batch.ids.tolist())
    message = f"{wrong} of {STEPS} batches hold other samples than they say"
    yield Check(name="input.content", ok=not wrong, detail=message if wrong else "")
    yield from sampling(drawn, ctx, sampler.epoch, "input.")


def sampling(
    drawn: list[list[int]], ctx: RankContext, samples: int, of: str = ""
) -> Iterator[Check]:
    """Every epoch each of its samples once over all shards, and in another order than the last."""
    per_rank: list[list[list[int]]] = ctx.gather(drawn)
    shards = list({ctx.mesh.shard(rank): ids for rank, ids in enumerate(per_rank)}.values())
    epochs = [
        [i for step in range(e, e + STEPS_PER_EPOCH) for shard in shards for i in shard[step]]
        for e in range(0, STEPS, STEPS_PER_EPOCH)
    ]
    once = all(sorted(epoch) == list(range(samples)) for epoch in epochs)
    yield counted.check(f"{of}samples_once_per_epoch", once, len(set(epochs[0])), samples)
    differ = epochs[0] != epochs[1]
    yield Check(name=f"{of}epochs_differ", ok=differ, detail="order of two epochs")
