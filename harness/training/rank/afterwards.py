"""Steps after the timed window, which show whether a user's files computed as they were checked.

A user's model and input are a part of their own reference, so that no loss shows what they do late.
Two things show it. A model that leaves out a part of its work runs fewer matrix products than in
the correctness check, or narrower ones. A file that keeps a schedule, and so hides the time that
ranks spend on communication, takes less time for a step after a pause.
"""

import random
import time
from collections.abc import Callable

from harness.record import LateSteps
from harness.training.context import Loaded, RankContext, own_batch
from harness.training.data import Batch, Sampler
from harness.training.work import counted_flops

#: Number of steps without a pause, and of steps after a pause.
STEPS = 3
#: Number of steps in an epoch, as in the correctness check: both then draw the same batch.
STEPS_PER_EPOCH = 2


def first_batch(loaded: Loaded, ctx: RankContext) -> Batch:
    """Return the batch with which the correctness check counts the products of a step."""
    sampler = Sampler(ctx.batching, steps_per_epoch=STEPS_PER_EPOCH, seed=ctx.case.seed)
    return own_batch(loaded, ctx, sampler.ids(0, ctx.shard))


def probe(
    step: Callable[[], object],
    work: Callable[[], object],
    meet: Callable[[], object],
    settle: Callable[[], object],
) -> LateSteps:
    """Time steps with and without pauses, and count the matrix products of one further step.

    ``step`` fetches a batch from the case's input and trains on it. ``work`` trains on the batch of
    the correctness check. Pauses last one to two steps, drawn at random, so that they end at no
    fixed place of a schedule. ``meet`` waits for all ranks, and ``settle`` for the device. This is
    a collective of all ranks.
    """

    def timed(pause_s: float) -> float:
        settle()
        meet()
        if pause_s:
            time.sleep(pause_s)
            meet()
        began_s = time.perf_counter()
        step()
        settle()
        return time.perf_counter() - began_s

    steps_s: list[float] = []
    paused_s: list[float] = []
    for _ in range(STEPS):
        steps_s += [timed(0.0), timed(0.0)][1:]  # the first one follows a pause
        paused_s.append(timed(random.uniform(1, 2) * steps_s[-1]))
    return LateSteps(
        flops=counted_flops(work, weighted=True),
        steps_s=tuple(steps_s),
        paused_s=tuple(paused_s),
    )
