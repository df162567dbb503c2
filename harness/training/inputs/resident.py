"""Batches lie on the device before the window begins."""

from dataclasses import replace

from harness.training.context import Knobs
from harness.training.data import Batch
from harness.training.feeds import Feed, Source

INPUT = dict(instead=())

#: Bytes of batches made beforehand at most; beyond, the first ones are used again.
POOL_BYTES = 1 << 30


def feed(source: Source, knobs: Knobs) -> Feed:
    """Makes all of them now."""
    batches: list[Batch] = []
    pool = known = 0
    for step in range(source.steps):
        if pool < POOL_BYTES:
            batches.append(source.make(step))
            source.pooled(batches[-1].inputs)
            pool += batches[-1].inputs.nbytes + batches[-1].targets.nbytes
            known = len(batches)
        else:  # content used again under new ids: the samples are consumed all the same
            batches.append(replace(batches[step % known], ids=source.ids(step)))
    return batches.__getitem__
