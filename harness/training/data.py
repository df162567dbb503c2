"""Which samples a shard trains on at each step, and their deterministic content."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.cases import Batching


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
