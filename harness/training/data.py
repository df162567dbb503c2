"""The samples that a shard trains on at each step, and their deterministic content."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.cases import Batching


@dataclass(frozen=True)
class Batch:
    """The samples of one shard in one step.

    Dimension 0 of ``inputs`` and ``targets`` is the batch. ``of`` is the number of samples of all
    shards in this step, or 0 if the global batch is not short. A shard without samples has empty
    ``ids`` and one placeholder sample whose weight in the loss is 0.
    """

    ids: Tensor
    inputs: Tensor
    targets: Tensor
    of: int = 0


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's default generators of the CPU and of this device."""
    defaults = [torch.default_generator]
    if device.type != "cpu":
        of_devices = getattr(torch.get_device_module(device), "default_generators", ())
        defaults += [of_devices[device.index or 0]] if of_devices else []
    return defaults


def set_seed(batch: Batch, seed: int) -> None:
    """Seed torch's default generators for a step on this batch.

    The seed depends on the batch's first sample, which no other shard has in the same step. A
    forward pass that draws random numbers, such as dropout, therefore draws the same ones in a
    launch and in its reference.
    """
    first = int(batch.ids[0]) if len(batch.ids) else -1
    for generator in generators(batch.inputs.device):
        generator.manual_seed((seed + 1) * 1_000_003 + first)


def permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of samples in an epoch, int64 of shape (num_samples,).

    Each epoch has a different order, as with ``set_epoch`` of torch's ``DistributedSampler``.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(num_samples, generator=generator)


def shard_of(global_ids: Tensor, shard: int, batching: Batching) -> Tensor:
    """Return the part of a global batch that one shard trains on."""
    return global_ids[batching.place(shard)]


class Sampler:
    """The sample ids of every step and shard.

    If ``fresh`` is set, no sample of an epoch occurs in another epoch.
    """

    def __init__(
        self, batching: Batching, *, steps_per_epoch: int, seed: int, fresh: bool = False
    ) -> None:
        self.batching = batching
        self.steps_per_epoch = steps_per_epoch
        self.seed = seed
        self.fresh = fresh

    def ids(self, step: int, shard: int) -> Tensor:
        """Return the int64 ids of the samples of ``shard`` at ``step``, in training order."""
        epoch, index = divmod(step, self.steps_per_epoch)
        size = self.batching.global_batch
        order = permutation(self.epoch, self.seed, epoch)
        order += epoch * len(order) * self.fresh
        return shard_of(order[index * size : (index + 1) * size], shard, self.batching)

    @property
    def epoch(self) -> int:
        """The number of samples of an epoch; its last batch may be short."""
        return self.batching.global_batch * (self.steps_per_epoch - 1) + self.batching.last

    def of(self, step: int) -> int:
        """Return the number of samples of all shards in this step, or 0 for a full batch."""
        is_last = step % self.steps_per_epoch == self.steps_per_epoch - 1
        short = self.batching.last < self.batching.global_batch
        return self.batching.last if is_last and short else 0


def hashed(ids: Tensor, width: int) -> Tensor:
    """Return pseudo-random non-negative int64 of shape (len(ids), width).

    The result is a pure function of the ids: the finaliser of splitmix64 (Steele et al., OOPSLA
    2014) applied to id * width + column.
    """
    columns = torch.arange(width, dtype=torch.int64, device=ids.device)
    x = ids.to(torch.int64)[:, None] * width + columns
    x = x * -7046029254386353131 + 1
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (x ^ ((x >> 31) & ((1 << 33) - 1))) & ((1 << 62) - 1)


def uniform(ids: Tensor, width: int) -> Tensor:
    """Return float32 in [-1, 1) of shape (len(ids), width), a pure function of the ids."""
    return (hashed(ids, width) % (1 << 24)).float() / (1 << 23) - 1


def images(ids: Tensor, edge: int) -> Tensor:
    """Return pseudo-random float32 images of shape (len(ids), 3, edge, edge).

    Values are in [-1, 1) and depend on the ids only.
    """
    return uniform(ids, 3 * edge * edge).view(-1, 3, edge, edge)


def labels(ids: Tensor, classes: int) -> Tensor:
    """Return pseudo-random int64 classes of shape (len(ids),), below ``classes``.

    They depend on the ids only.
    """
    return hashed(ids + 1, 1)[:, 0] % classes
