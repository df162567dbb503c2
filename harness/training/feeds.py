"""Samples and batches: which samples a shard trains on, and what an input returns."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from harness.cases import Batching
from harness.training.context import Loaded, RankContext, own_batch, placed


@dataclass(frozen=True)
class Batch:
    """One shard's samples of one step: ``inputs`` and ``targets`` have the batch as dim 0.

    ``of`` is how many samples all shards have in this step, 0 for a whole batch. A shard without
    any has a stand-in, which counts nothing.
    """

    ids: Tensor
    inputs: Tensor
    targets: Tensor
    of: int = 0


def permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch; differs from epoch to epoch (torch's ``set_epoch``)."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(num_samples, generator=generator)


def shard_of(global_ids: Tensor, shard: int, batching: Batching) -> Tensor:
    """The part of a global batch that one shard trains on."""
    return global_ids[batching.place(shard)]


class Sampler:
    """Sample ids of every step, for every shard. ``fresh``: every epoch has samples of its own."""

    def __init__(
        self, batching: Batching, *, steps_per_epoch: int, seed: int, fresh: bool = False
    ) -> None:
        self.batching = batching
        self.steps_per_epoch = steps_per_epoch
        self.seed = seed
        self.fresh = fresh

    def ids(self, step: int, shard: int) -> Tensor:
        """int64 ids of ``shard`` at ``step``, in the order they are trained on."""
        epoch, index = divmod(step, self.steps_per_epoch)
        size = self.batching.global_batch
        order = permutation(self.epoch, self.seed, epoch)
        order += epoch * len(order) * self.fresh
        return shard_of(order[index * size : (index + 1) * size], shard, self.batching)

    @property
    def epoch(self) -> int:
        """Samples of an epoch, whose last batch may be short."""
        return self.batching.global_batch * (self.steps_per_epoch - 1) + self.batching.last

    def of(self, step: int) -> int:
        """Samples of all shards in this step, 0 for a whole batch."""
        is_last = step % self.steps_per_epoch == self.steps_per_epoch - 1
        short = self.batching.last < self.batching.global_batch
        return self.batching.last if is_last and short else 0


def hashed(ids: Tensor, width: int) -> Tensor:
    """Pseudo-random non-negative int64 of shape (len(ids), width), a pure function of the ids.

    The finaliser of splitmix64 (Steele et al., OOPSLA 2014) on id * width + column.
    """
    columns = torch.arange(width, dtype=torch.int64, device=ids.device)
    x = ids.to(torch.int64)[:, None] * width + columns
    x = x * -7046029254386353131 + 1
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (x ^ ((x >> 31) & ((1 << 33) - 1))) & ((1 << 62) - 1)


def uniform(ids: Tensor, width: int) -> Tensor:
    """float32 in [-1, 1) of shape (len(ids), width), a pure function of the ids."""
    return (hashed(ids, width) % (1 << 24)).float() / (1 << 23) - 1


def images(ids: Tensor, edge: int) -> Tensor:
    """float32 images of shape (len(ids), 3, edge, edge), a pure function of the ids."""
    return uniform(ids, 3 * edge * edge).view(-1, 3, edge, edge)


def labels(ids: Tensor, classes: int) -> Tensor:
    """int64 classes of shape (len(ids),), a pure function of the ids."""
    return hashed(ids + 1, 1)[:, 0] % classes


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
