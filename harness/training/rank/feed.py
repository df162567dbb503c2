"""Where a rank's batches come from: made before the window, in every step, or ahead of it."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from harness.spec import Data
from harness.training.context import Loaded, RankContext, own_batch
from harness.training.data import Batch, Sampler
from harness.training.rank.window import Feed

#: Steps whose samples are shuffled together: a longer window trains on the same ones at first, and
#: no sample comes twice.
STEPS_PER_EPOCH = 64
#: Bytes of batches made beforehand at most; beyond, the first ones are used again.
POOL_BYTES = 1 << 30
#: Batches that are made ahead of the step that trains on them.
AHEAD = 2


def make_feed(
    loaded: Loaded,
    ctx: RankContext,
    steps: int,
    pooled: Callable[[Tensor], None] = lambda inputs: None,
) -> Feed:
    """The batches of ``steps`` steps, as the case's ``data`` says.

    ``pooled`` is told the inputs that are made beforehand.
    """
    whole = dataclasses.replace(ctx.batching, last=ctx.batching.global_batch)
    sampler = Sampler(whole, steps_per_epoch=STEPS_PER_EPOCH, seed=ctx.case.seed, fresh=True)

    def make(step: int) -> Batch:
        return own_batch(loaded, ctx, sampler.ids(step, ctx.shard))

    if ctx.case.data is Data.LOADED:
        return make
    if ctx.case.data is Data.PREFETCHED:
        return _ahead(make, steps)
    batches: list[Batch] = []
    pool = 0
    for step in range(steps):
        if pool < POOL_BYTES:
            batches.append(make(step))
            pooled(batches[-1].inputs)
            pool += batches[-1].inputs.nbytes + batches[-1].targets.nbytes
            known = len(batches)
        else:  # content used again under new ids: the samples are consumed all the same
            batches.append(
                dataclasses.replace(batches[step % known], ids=sampler.ids(step, ctx.shard))
            )
    return lambda step: batches[step]


def _ahead(make: Feed, steps: int) -> Feed:
    """The same batches, made by a thread while earlier ones are trained on."""
    maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
    waiting: dict[int, Future[Batch]] = {}

    def take(step: int) -> Batch:
        for coming in range(step, min(step + AHEAD + 1, steps)):
            if coming not in waiting:
                waiting[coming] = maker.submit(make, coming)
        batch = waiting[step].result()
        if step + 1 == steps:
            maker.shutdown()
        return batch

    return take
