"""How a global batch falls apart over shards and accumulation steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.base.errors import SpecError
from harness.cases.case import CaseSpec, Mesh, Mode


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How a global batch falls apart: each shard's micro-batch, ``accumulate`` times.

    ``last`` is how many samples the last batch of an epoch has: its last shards get fewer, or none.
    """

    micros: tuple[int, ...]
    accumulate: int
    mesh: Mesh
    last: int

    @property
    def shards(self) -> int:
        """Parts of a batch that are trained on side by side."""
        return len(self.micros)

    @property
    def largest(self) -> int:
        return max(self.micros)

    @property
    def global_batch(self) -> int:
        """Samples that the whole world trains on in one optimizer step."""
        return sum(self.micros) * self.accumulate

    def place(self, shard: int) -> slice:
        """Where a shard's samples lie in a global batch."""
        start = sum(self.micros[:shard]) * self.accumulate
        return slice(start, start + self.micros[shard] * self.accumulate)

    def weight(self, samples: int, of: int) -> float:
        """The weight of the mean loss of ``samples`` in the mean over shards, in a batch ``of``
        many.

        1.0 for a whole shard where all are of one size. DDP and FSDP average over ranks, which
        would make the samples of small batches count more.
        """
        return samples * self.shards / of


def batching(case: CaseSpec, default_micro: int, mesh: Mesh) -> Batching:
    """How a case's global batch falls apart; ValueError when it does not divide.

    Ranks that differ only along a dimension that cuts the model see the same samples.
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
    """Whole parts of ``total`` in these proportions, by largest remainder (Hamilton)."""
    exact = [total * share / math.fsum(shares) for share in shares]
    parts = [math.floor(x) for x in exact]
    behind = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in behind[: total - sum(parts)]:
        parts[i] += 1
    return tuple(parts)


def alike(case: CaseSpec, target: CaseSpec) -> CaseSpec:
    """The case with the batch of a rank that a larger world has; SpecError if it is no whole one.

    Exchange and waiting hide behind compute, so small worlds speak for a large one only if a rank
    computes as much in them.
    """
    if case.mode is Mode.WEAK or target.global_batch is None:
        return case
    micro_batch, rest = divmod(target.global_batch, target.world_size * target.accumulate)
    if rest or not micro_batch:
        unit = target.world_size * target.accumulate
        raise SpecError(
            f"a batch of {target.global_batch} does not divide over {target.world_size} ranks",
            where=target.id,
            expected=f"a multiple of {unit}",
            fix=f"global_batch={unit * max(1, target.global_batch // unit)}",
        )
    return replace(case, mode=Mode.WEAK, global_batch=None, micro_batch=micro_batch)


#: Ranks that compute each micro-batch when their bits are compared; a majority needs three.
COPIES = 3


def copied(rank: int, step: int, copy: int, num_ranks: int) -> int:
    """The micro-batch that a rank computes as its ``copy``-th in a step: other ones each time."""
    return (rank - step - copy * _stride(num_ranks)) % num_ranks


def copier(micro: int, step: int, copy: int, num_ranks: int) -> int:
    """The rank that computes a micro-batch as its ``copy``-th: the inverse of ``copied``."""
    return (micro + step + copy * _stride(num_ranks)) % num_ranks


def _stride(num_ranks: int) -> int:
    """Far enough to leave the node, as far as there are nodes."""
    return max(1, num_ranks // COPIES)
