"""Matching of communication across ranks, on generated worlds with known matches and clocks."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.analysis.timeline.close import clock_bounds, match
from harness.analysis.timeline.intervals import EMPTY
from harness.analysis.timeline.lanes import Lanes, Op


def rank_of(rank: int, ops: list[Op], world: int) -> Lanes:
    edges = np.array([0, 10_000], dtype=np.int64)
    return Lanes(
        rank=rank, world_size=world, device="cpu", edges=edges, compute=EMPTY, move=EMPTY,
        ops=tuple(ops), data=EMPTY, launch=EMPTY, queued=EMPTY,
    )  # fmt: skip


def planted(seed: int, world: int, count: int, offsets: list[int]) -> list[Lanes]:
    """Return ranks with all-reduces that all ranks leave together, on clocks with these offsets."""
    draw = random.Random(seed)
    ranks: list[list[Op]] = [[] for _ in range(world)]
    at = 0
    for seq in range(count):
        came = [at + draw.randrange(1, 50) for _ in range(world)]
        left = max(came) + draw.randrange(1, 20)
        for rank, ops in enumerate(ranks):
            off = offsets[rank]
            ops.append(
                Op(start=came[rank] + off, end=left + off, kind="all_reduce", group="g",
                   size=world, seq=seq, payload=64)
            )  # fmt: skip
        at = left
    return [rank_of(rank, ops, world) for rank, ops in enumerate(ranks)]


worlds = st.tuples(st.integers(0, 999), st.integers(2, 4), st.integers(1, 6))


@given(worlds, st.lists(st.integers(-500, 500), min_size=4, max_size=4))
def test_the_offset_of_a_clock_lies_within_its_bounds(
    drawn: tuple[int, int, int], offsets: list[int]
) -> None:
    """The correction of a rank's times is the amount by which its clock was set behind."""
    seed, world, count = drawn
    matched = match(planted(seed, world, count, offsets))
    assert len(matched.meetings) == count and not matched.refused
    for rank in range(1, world):
        bounds = clock_bounds(matched, 0, rank)
        assert bounds is not None
        assert bounds[0] <= offsets[0] - offsets[rank] <= bounds[1]


@given(worlds)
def test_the_last_rank_to_arrive_does_not_wait(drawn: tuple[int, int, int]) -> None:
    seed, world, count = drawn
    for meeting in match(planted(seed, world, count, [0] * world)).meetings:
        last = meeting.ops[meeting.last]
        assert last.start == meeting.last_start
        assert meeting.shortest == last.end - last.start
        assert meeting.symmetric and not meeting.p2p


def edited(lanes: list[Lanes], rank: int, i: int, **fields: object) -> list[Lanes]:
    ops = list(lanes[rank].ops)
    ops[i] = replace(ops[i], **fields)  # type: ignore[arg-type]
    return [replace(x, ops=tuple(ops)) if x.rank == rank else x for x in lanes]


def test_operations_of_different_sizes_are_not_matched() -> None:
    wrong = edited(planted(1, 2, 3, [0, 0]), 1, 2, payload=65)
    matched = match(wrong)
    assert not matched.meetings and "disagree on its size" in matched.refused


def test_different_numbers_of_operations_are_not_matched() -> None:
    """Without sequence numbers, operations are matched by order, so none may be missing."""
    lanes = [
        replace(x, ops=tuple(replace(op, seq=-1) for op in x.ops)) for x in planted(1, 2, 3, [0, 0])
    ]
    fewer = [lanes[0], replace(lanes[1], ops=lanes[1].ops[:-1])]
    assert "counts differ" in match(fewer).refused
    assert len(match(lanes).meetings) == 3


@given(st.permutations([8, 64, 64, 512]), st.permutations([8, 64, 64, 512]))
def test_concurrent_collectives_that_start_in_another_order_are_matched_by_size(
    first: list[int], second: list[int]
) -> None:
    """A backend without sequence numbers may start concurrent collectives in another order."""
    lanes = [
        rank_of(
            rank,
            [
                Op(start=at, end=100 + at, kind="all_reduce", group="", payload=size)
                for at, size in enumerate(sizes)
            ],
            2,
        )
        for rank, sizes in enumerate((first, second))
    ]
    matched = match(lanes)
    assert not matched.refused
    assert [{op.payload for op in meeting.ops.values()} for meeting in matched.meetings] == [
        {8},
        {64},
        {64},
        {512},
    ]


def test_an_operation_at_the_edge_of_a_capture_is_skipped_and_counted() -> None:
    lanes = planted(1, 3, 3, [0, 0, 0])
    cut = [replace(lanes[0], ops=lanes[0].ops[1:]), *lanes[1:]]
    matched = match(cut)
    assert (len(matched.meetings), matched.lone) == (2, 1)


def test_a_send_without_a_receive_is_refused() -> None:
    send = Op(start=0, end=5, kind="send", group="g", peer=1)
    recv = Op(start=1, end=6, kind="recv", group="g", peer=0)
    (meeting,) = match([rank_of(0, [send], 2), rank_of(1, [recv], 2)]).meetings
    assert meeting.p2p and not meeting.symmetric
    alone = match([rank_of(0, [send], 2), rank_of(1, [], 2)])
    assert "no matching peer" in alone.refused


@pytest.mark.parametrize("kind", ["broadcast", "gather", "scatter", "reduce"])
def test_collectives_that_ranks_may_leave_early_do_not_bound_clocks(kind: str) -> None:
    lanes = [
        replace(x, ops=tuple(replace(op, kind=kind) for op in x.ops))
        for x in planted(1, 2, 3, [0, 7])
    ]
    assert clock_bounds(match(lanes), 0, 1) is None


def test_part_of_a_world_is_matched_only_if_its_groups_are_complete() -> None:
    lanes = planted(1, 3, 2, [0, 0, 0])
    assert match(lanes[:2]).refused == "only 2 of 3 traces were given"
    halves = [
        replace(x, world_size=4, ops=tuple(replace(op, size=2) for op in x.ops))
        for x in planted(1, 2, 2, [0, 0])
    ]
    assert len(match(halves).meetings) == 2
