"""Which operations belong together: planted worlds whose meetings and clocks are known."""

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
    """All-reduces that all ranks leave together, on clocks that are off by so much."""
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
def test_a_clock_that_is_off_lies_within_what_was_possible(
    drawn: tuple[int, int, int], offsets: list[int]
) -> None:
    """What is added to a rank's times is how much its clock was planted behind."""
    seed, world, count = drawn
    matched = match(planted(seed, world, count, offsets))
    assert len(matched.meetings) == count and not matched.refused
    for rank in range(1, world):
        bounds = clock_bounds(matched, 0, rank)
        assert bounds is not None
        assert bounds[0] <= offsets[0] - offsets[rank] <= bounds[1]


@given(worlds)
def test_the_last_to_come_waits_for_nobody(drawn: tuple[int, int, int]) -> None:
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


def test_sizes_that_differ_are_never_matched() -> None:
    wrong = edited(planted(1, 2, 3, [0, 0]), 1, 2, payload=65)
    matched = match(wrong)
    assert not matched.meetings and "disagree on its size" in matched.refused


def test_counts_that_differ_are_never_matched() -> None:
    """Without numbers the order counts, and then none may be missing."""
    lanes = [
        replace(x, ops=tuple(replace(op, seq=-1) for op in x.ops)) for x in planted(1, 2, 3, [0, 0])
    ]
    fewer = [lanes[0], replace(lanes[1], ops=lanes[1].ops[:-1])]
    assert "counts differ" in match(fewer).refused
    assert len(match(lanes).meetings) == 3


def test_one_at_the_edge_of_a_capture_is_left_out_and_counted() -> None:
    lanes = planted(1, 3, 3, [0, 0, 0])
    cut = [replace(lanes[0], ops=lanes[0].ops[1:]), *lanes[1:]]
    matched = match(cut)
    assert (len(matched.meetings), matched.lone) == (2, 1)


def test_a_message_has_two_ends_or_is_refused() -> None:
    send = Op(start=0, end=5, kind="send", group="g", peer=1)
    recv = Op(start=1, end=6, kind="recv", group="g", peer=0)
    (meeting,) = match([rank_of(0, [send], 2), rank_of(1, [recv], 2)]).meetings
    assert meeting.p2p and not meeting.symmetric
    alone = match([rank_of(0, [send], 2), rank_of(1, [], 2)])
    assert "no matching peer" in alone.refused


@pytest.mark.parametrize("kind", ["broadcast", "gather", "scatter", "reduce"])
def test_what_ranks_leave_early_says_nothing_of_clocks(kind: str) -> None:
    lanes = [
        replace(x, ops=tuple(replace(op, kind=kind) for op in x.ops))
        for x in planted(1, 2, 3, [0, 7])
    ]
    assert clock_bounds(match(lanes), 0, 1) is None


def test_a_part_of_a_world_is_matched_only_where_its_groups_are_whole() -> None:
    lanes = planted(1, 3, 2, [0, 0, 0])
    assert match(lanes[:2]).refused == "only 2 of 3 traces were given"
    halves = [
        replace(x, world_size=4, ops=tuple(replace(op, size=2) for op in x.ops))
        for x in planted(1, 2, 2, [0, 0])
    ]
    assert len(match(halves).meetings) == 2
