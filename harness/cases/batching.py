"""Division of a global batch over shards and accumulation steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.base.errors import SpecError
from harness.cases.case import CaseSpec, Mesh, Mode


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The division of a global batch among shards and accumulation steps.

    ``micros`` holds the micro-batch size of each shard, in samples. In each step a shard trains on
    ``accumulate`` micro-batches. ``last`` is the number of samples in the last batch of an epoch.
    If it is short, the last shards get fewer samples, or none.
    """

    micros: tuple[int, ...]
    accumulate: int
    mesh: Mesh
    last: int

    @property
    def shards(self) -> int:
        """The number of parts of a batch that ranks train on in parallel."""
        return len(self.micros)

    @property
    def largest(self) -> int:
        """The largest micro-batch of a shard, in samples."""
        return max(self.micros)

    @property
    def global_batch(self) -> int:
        """The number of samples that the whole world trains on in one optimizer step."""
        return sum(self.micros) * self.accumulate

    def place(self, shard: int) -> slice:
        """Return the slice of a global batch that holds the samples of a shard."""
        start = sum(self.micros[:shard]) * self.accumulate
        return slice(start, start + self.micros[shard] * self.accumulate)

    def weight(self, samples: int, of: int) -> float:
        """Return the weight of a micro-batch's mean loss.

        The micro-batch has ``samples`` of the ``of`` samples of the global batch. DDP and FSDP
        average over ranks, so without this weight the samples of smaller micro-batches would count
        more. The weight is 1.0 if all shards have the same size and a shard is one micro-batch.
        """
        return samples * self.shards / of


def batching(case: CaseSpec, default_micro: int, mesh: Mesh) -> Batching:
    """Return the division of a case's global batch. Raise ValueError if it does not divide evenly.

    Ranks that differ only along a dimension that splits the model see the same samples.
    """
    shards = mesh.shards
    if case.shares and shards != case.world_size:
        raise ValueError("this strategy does not support shards of unequal size")
    if case.mode is Mode.WEAK:
        total = (case.micro_batch or default_micro) * case.world_size
        rest = 0
    else:
        assert case.global_batch is not None
        total, rest = divmod(case.global_batch, case.accumulate)
    micros = apportion(total, case.shares or (1.0,) * shards)
    if rest or min(micros) == 0 or (len(set(micros)) > 1 and not case.shares):
        raise ValueError(
            f"a batch of {case.global_batch or total} does not divide over {shards} shards"
            f" x {case.accumulate} accumulation steps"
        )
    samples = sum(micros) * case.accumulate
    last = max(1, round(case.last_batch * samples))
    return Batching(micros=micros, accumulate=case.accumulate, mesh=mesh, last=last)


def apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divide ``total`` into whole parts that are proportional to ``shares``.

    Remainders are assigned by the largest-remainder (Hamilton) method.
    """
    exact = [total * share / math.fsum(shares) for share in shares]
    parts = [math.floor(x) for x in exact]
    behind = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in behind[: total - sum(parts)]:
        parts[i] += 1
    return tuple(parts)


def alike(case: CaseSpec, target: CaseSpec) -> CaseSpec:
    """Return the case with the same batch per rank as ``target``, which has a larger world.

    Communication and waiting overlap with compute. Small worlds therefore predict a large one only
    if each of their ranks computes as much as a rank of the large one. Raises SpecError if the
    target's global batch does not divide evenly.
    """
    if case.mode is Mode.WEAK or target.global_batch is None:
        return case
    micro_batch, rest = divmod(target.global_batch, target.world_size * target.accumulate)
    if rest or not micro_batch:
        unit = target.world_size * target.accumulate
        raise SpecError(
            f"a batch of {target.global_batch} does not divide over {target.world_size} ranks",
            where=target.id,
            expected=f"a global batch that is a multiple of {unit}",
            fix=f"global_batch={unit * max(1, target.global_batch // unit)}",
        )
    return replace(case, mode=Mode.WEAK, global_batch=None, micro_batch=micro_batch)


#: Number of ranks that compute each micro-batch when results are compared bitwise. Three is the
#: least number with a majority.
COPIES = 3


def copied(rank: int, step: int, copy: int, num_ranks: int) -> int:
    """Return the index of the ``copy``-th micro-batch that a rank computes in a step.

    The index differs from step to step.
    """
    return (rank - step - copy * _stride(num_ranks)) % num_ranks


def copier(micro: int, step: int, copy: int, num_ranks: int) -> int:
    """Return the rank whose ``copy``-th micro-batch in a step is ``micro``.

    This is the inverse of ``copied``.
    """
    return (micro + step + copy * _stride(num_ranks)) % num_ranks


def _stride(num_ranks: int) -> int:
    """Return the distance between ranks that compute the same micro-batch.

    It is a third of the world, so these ranks are usually on different nodes.
    """
    return max(1, num_ranks // COPIES)
