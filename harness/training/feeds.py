"""Samples and batches: which samples a shard trains on, and what an input returns."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from harness.training.context import Loaded, RankContext, own_batch, placed
from harness.training.data import Batch, Sampler

#: The batch of a step, of this rank. May have ``helpers`` and ``took``, as ``helpers_of`` says.
Feed: TypeAlias = Callable[[int], Batch]

#: Steps whose samples are shuffled together: a longer window trains on the same ones at first, and
#: no sample comes twice.
STEPS_PER_EPOCH = 64


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which samples a rank trains on in each of ``steps`` steps, and what they hold.

    ``folder`` is where an input may keep files of this launch; of a node's ranks this is the
    ``local_rank``-th of ``local_size``, ``meet`` waits for all ranks. ``pooled`` is told the inputs
    that are made beforehand.
    """

    loaded: Loaded
    ctx: RankContext
    sampler: Sampler
    steps: int
    folder: Path
    local_rank: int = 0
    local_size: int = 1
    meet: Callable[[], object] = lambda: None
    pooled: Callable[[Tensor], None] = lambda inputs: None

    def ids(self, step: int) -> Tensor:
        """The numbers of this rank's samples, int64."""
        return self.sampler.ids(step, self.ctx.shard)

    def make(self, step: int) -> Batch:
        """The batch of a step, made now."""
        return own_batch(self.loaded, self.ctx, self.ids(step), self.sampler.of(step))

    def content(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples on the host, as the model's file makes them."""
        inputs, targets = self.loaded.model.batch(ids, self.loaded.size(self.ctx.case))
        return inputs, targets

    def batch(self, step: int, ids: Tensor, inputs: Tensor, targets: Tensor) -> Batch:
        """A batch of content that came from elsewhere, on the device."""
        batch_made = Batch(ids=ids, inputs=inputs, targets=targets, of=self.sampler.of(step))
        return placed(self.loaded, self.ctx, batch_made)


def whole_epochs(ctx: RankContext, data_seed: int = 0) -> Sampler:
    """Samples without a short last batch, in epochs that have samples of their own.

    ``data_seed`` is drawn for each run: what is built of a case knows its seed, not this one.
    """
    whole = replace(ctx.batching, last=ctx.batching.global_batch)
    seed = ctx.case.seed + data_seed
    return Sampler(whole, steps_per_epoch=STEPS_PER_EPOCH, seed=seed, fresh=True)


def helpers_of(feed: Feed) -> Sequence[int]:
    """Processes that make batches for this rank: their CPU time and their memory are its own.

    Only its children: an input may name another rank, whose memory would then not be looked at.
    """
    children = {child.pid for child in multiprocessing.active_children()}
    return [pid for pid in getattr(feed, "helpers", ()) if pid in children]


def took(feed: Feed) -> Mapping[str, float] | None:
    """Time that making batches took in a median step, by what was done; s, and bytes from disk."""
    measured: Callable[[], Mapping[str, float]] | None = getattr(feed, "took", None)
    return None if measured is None else measured()
