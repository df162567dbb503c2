"""A majority vote names the rank with different bits; if all bits are equal, no rank is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, strategies as st

from harness.analysis.samples.bits import compare
from harness.cases.batching import COPIES, copied, copier
from harness.record.store import Samples

TENSORS = 4


def honest(ranks: int, steps: int) -> list[Samples]:
    """Return samples of ranks without faults; a hash encodes step, micro-batch and tensor."""
    zeros = np.zeros(steps)
    out = []
    for rank in range(ranks):
        bits = np.zeros((steps, COPIES, TENSORS), dtype=np.int64)
        received = np.zeros((steps, ranks), dtype=np.int64)
        for step in range(steps):
            for copy in range(COPIES):
                of = copied(rank, step, copy, ranks)
                bits[step, copy] = [1 + of + 100 * step + 10_000 * t for t in range(TENSORS)]
            for source in range(ranks):
                of = copied(source, step, 0, ranks)
                received[step, source] = 1 + of + 100 * step + 10_000 * (TENSORS - 1)
        out.append(
            Samples(
                marks_s=np.zeros(steps + 1), loss=zeros, sample_ids=np.zeros((steps, 0)),
                rss_bytes=zeros, step_s=zeros, bits=bits, received=received,
                stored=np.array([7, 7]),
            )
        )  # fmt: skip
    return out


@given(st.integers(1, 40), st.integers(0, 30), st.integers(0, COPIES - 1))
def test_rotation_is_its_own_inverse(ranks: int, step: int, copy: int) -> None:
    every = [copied(r, step, copy, ranks) for r in range(ranks)]
    assert sorted(every) == list(range(ranks))
    assert [copier(m, step, copy, ranks) for m in every] == list(range(ranks))


@given(st.integers(3, 40), st.integers(0, 30))
def test_each_micro_batch_is_computed_by_three_ranks(ranks: int, step: int) -> None:
    who = {copier(1, step, copy, ranks) for copy in range(COPIES)}
    assert len(who) == COPIES


@given(st.integers(1, 9), st.integers(1, 5))
def test_equal_bits_name_no_rank(ranks: int, steps: int) -> None:
    compared = compare(honest(ranks, steps))
    assert compared.odd == ()
    assert compared.num == ranks * (steps * (COPIES * TENSORS + ranks) + 2)


@given(st.data(), st.integers(3, 9))
def test_the_rank_that_computed_different_bits_is_named(data: st.DataObject, ranks: int) -> None:
    rank, step = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 2))
    copy = data.draw(st.integers(0, COPIES - 1))
    left = honest(ranks, 3)
    bits = left[rank].bits
    assert bits is not None
    bits[step, copy, data.draw(st.integers(0, TENSORS - 2))] ^= 1
    (odd,) = compare(left).odd
    assert (odd.ranks, odd.step, odd.what) == ((rank,), step, "computed")


def test_with_two_ranks_only_one_that_disagrees_with_itself_is_named() -> None:
    left = honest(2, 2)
    assert left[1].bits is not None
    left[1].bits[0, 0, 0] ^= 1  # With two ranks, its first and its third micro-batch are the same.
    assert [o.ranks for o in compare(left).odd] == [(1,)]
    left[1].bits[0, 2, 0] ^= 1
    assert [o.ranks for o in compare(left).odd] == [(0, 1)]


@given(st.data(), st.integers(3, 9))
def test_sender_and_receiver_are_distinguished(data: st.DataObject, ranks: int) -> None:
    source, rank = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, ranks - 1))
    left = honest(ranks, 2)
    received = left[rank].received
    assert received is not None
    received[1, source] ^= 1
    assert [(o.ranks, o.what) for o in compare(left).odd] == [((rank,), "received")]
    for other in left:
        assert other.received is not None
        other.received[0, source] ^= 1
    assert ((source,), "sent") in [(o.ranks, o.what) for o in compare(left).odd]


def test_stored_bits_must_equal_those_read_back() -> None:
    left = honest(2, 1)
    left[0] = replace(left[0], stored=np.array([7, 6]))
    assert [(o.ranks, o.what) for o in compare(left).odd] == [((0,), "stored")]
