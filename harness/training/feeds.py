"""The source that gives an input its samples, and the functions that return its batches."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from harness.training.context import Loaded, RankContext, own_batch, placed
from harness.training.data import Batch, Sampler

#: A function that returns this rank's batch of a step. It may have the attributes ``helpers`` and
#: ``took``, which ``helpers_of`` and ``took`` below read.
Feed: TypeAlias = Callable[[int], Batch]

#: Number of steps in an epoch; the samples of an epoch are shuffled together. The number is fixed,
#: so a longer run begins with the same samples as a shorter one.
STEPS_PER_EPOCH = 64


@dataclass(frozen=True, kw_only=True)
class Source:
    """The samples that a rank trains on in each of ``steps`` steps, and their content.

    An input may write temporary files of this launch to ``folder``. ``local_rank`` is the index of
    this rank on its node, and ``local_size`` is the number of ranks on that node. ``meet`` waits
    for all ranks. If an input makes its tensors before the first step, it passes them to
    ``pooled``.
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
        """Return the int64 ids of this rank's samples in a step."""
        return self.sampler.ids(step, self.ctx.shard)

    def make(self, step: int) -> Batch:
        """Make the batch of a step and return it."""
        return own_batch(self.loaded, self.ctx, self.ids(step), self.sampler.of(step))

    def content(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of these samples on the host from the model's file."""
        inputs, targets = self.loaded.model.batch(ids, self.loaded.size(self.ctx.case))
        return inputs, targets

    def batch(self, step: int, ids: Tensor, inputs: Tensor, targets: Tensor) -> Batch:
        """Return a batch on the device from inputs and targets that the caller has read or made."""
        batch_made = Batch(ids=ids, inputs=inputs, targets=targets, of=self.sampler.of(step))
        return placed(self.loaded, self.ctx, batch_made)


def whole_epochs(ctx: RankContext, data_seed: int = 0) -> Sampler:
    """Return a sampler without a short last batch and with different samples in every epoch.

    ``data_seed`` is drawn for each run. The files of a case know only the seed of the case, so they
    cannot know the samples of a run in advance.
    """
    whole = replace(ctx.batching, last=ctx.batching.global_batch)
    seed = ctx.case.seed + data_seed
    return Sampler(whole, steps_per_epoch=STEPS_PER_EPOCH, seed=seed, fresh=True)


def helpers_of(feed: Feed) -> Sequence[int]:
    """Return the ids of the processes that make batches for this rank.

    Their CPU time and memory are added to the figures of the rank. Ids that are not child
    processes of the rank are left out: an input could otherwise name another rank, and the memory
    of that rank would escape the check.
    """
    children = {child.pid for child in multiprocessing.active_children()}
    return [pid for pid in getattr(feed, "helpers", ()) if pid in children]


def took(feed: Feed) -> Mapping[str, float] | None:
    """Return the median seconds per step that each part of making a batch took.

    The result also holds the bytes read from disk. It is None if the input measures nothing.
    """
    measured: Callable[[], Mapping[str, float]] | None = getattr(feed, "took", None)
    return None if measured is None else measured()
