"""Find the rank that computed, sent, received or stored different bits, by a majority of ranks.

Several ranks compute the same micro-batch, and the hashes of their results are compared. A rank
that differs from a majority of the ranks is wrong, and so is a rank that obtains two different
results. Otherwise the ranks differ, and it is unknown which one is wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.cases.batching import copier
from harness.record import RankRecord
from harness.record.store import Samples


@dataclass(frozen=True, kw_only=True)
class BitMismatch:
    """A mismatch between the bits of ranks.

    ``ranks`` is the rank that is wrong, or several ranks that differ from each other. ``what`` is
    ``computed``, ``sent``, ``received`` or ``stored``.
    """

    ranks: tuple[int, ...]
    step: int
    what: str


@dataclass(frozen=True, kw_only=True)
class ComparedBits:
    """The number ``num`` of hashes that were compared between ranks, and the mismatches ``odd``."""

    num: int
    odd: tuple[BitMismatch, ...]


def compare(samples: Sequence[Samples]) -> ComparedBits:
    """Compare the hashes of all ranks of a launch; ``samples`` are in the order of ranks."""
    bits = np.array([sample.bits for sample in samples])  # ranks, steps, copies, tensors
    received = np.array([sample.received for sample in samples])  # ranks, steps, sources
    stored = np.array([sample.stored for sample in samples])  # ranks, before and after
    num, steps, copies, _ = bits.shape
    odd = list[BitMismatch]()
    for step in range(steps):
        for micro in range(num):
            who = [copier(micro, step, copy, num) for copy in range(copies)]
            rows = bits[who, step, range(copies)]
            if (rows != rows[0]).any():
                odd += _computed(step, who, [row.tobytes() for row in rows])
        odd += _exchanged(step, bits, received)
    odd += _stored(stored)
    return ComparedBits(num=bits.size + received.size + stored.size, odd=tuple(odd))


def _computed(step: int, who: Sequence[int], rows: Sequence[bytes]) -> Iterator[BitMismatch]:
    ranks_of = defaultdict[bytes, set[int]](set)
    for rank, row in zip(who, rows, strict=True):
        ranks_of[row].add(rank)
    twice = [
        r for r, n in Counter(r for ranks in ranks_of.values() for r in ranks).items() if n > 1
    ]
    majority = max(ranks_of.values(), key=len)
    outside = [r for ranks in ranks_of.values() if ranks is not majority for r in ranks]
    if twice or len(majority) > 1:
        yield from (BitMismatch(ranks=(r,), step=step, what="computed") for r in twice or outside)
    else:
        yield BitMismatch(ranks=tuple(sorted({*who})), step=step, what="computed")


def _exchanged(step: int, bits: np.ndarray, received: np.ndarray) -> Iterator[BitMismatch]:
    """Find ranks that sent or received wrong bits of the gradients of a first micro-batch."""
    num = len(bits)
    for source in range(num):
        sent = bits[source, step, 0, -1]
        wrong = [rank for rank in range(num) if received[rank, step, source] != sent]
        if len(wrong) * 2 > num or (wrong == [source] and num == 1):
            yield BitMismatch(ranks=(source,), step=step, what="sent")
        else:
            yield from (BitMismatch(ranks=(rank,), step=step, what="received") for rank in wrong)


def _stored(stored: np.ndarray) -> Iterator[BitMismatch]:
    for rank, (before, after) in enumerate(stored):
        if before != after:
            yield BitMismatch(ranks=(rank,), step=-1, what="stored")


_TOLD = {
    "computed": "computed different bits from the other ranks",
    "sent": "sent different bits from those it computed",
    "received": "received different bits from those that were sent",
    "stored": "read different bits of its parameters from those it had written",
}


def sentences(compared: ComparedBits, ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """Return one sentence for each rank and kind of mismatch.

    Ranks that differ from each other, without a majority, share a sentence.
    """
    groups = defaultdict[tuple[tuple[int, ...], str], list[int]](list)
    for odd in compared.odd:
        groups[odd.ranks, odd.what].append(odd.step)
    hosts = {rank.rank: rank.host for rank in ranks}
    sentences = []
    for (who, what), steps in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
        when = f" in {len({*steps})} steps, first in step {min(steps)}" if what != "stored" else ""
        names = " and ".join(f"rank {r} ({hosts[r]})" for r in who)
        if len(who) == 1:
            sentences.append(f"{names} {_TOLD[what]}{when}")
        else:
            sentences.append(
                f"{names} computed different bits{when}; a third rank would show which is correct"
            )
    return tuple(sentences)
