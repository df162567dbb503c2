"""The number of samples in a step over all ranks, from the rows that ranks share."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, strategies as st

from harness.analysis.script.counting import rows
from harness.record.store import Samples

BATCH = 32


def seen(*batches: list[int]) -> list[Samples]:
    """Return the samples that each rank saw in one step."""
    return [
        Samples(
            marks_s=np.zeros(2), loss=np.zeros(1), sample_ids=np.zeros((1, 0), np.int64),
            rss_bytes=np.zeros(1), step_s=np.zeros(1), seen=np.array([batch], np.int64),
        )
        for batch in batches
    ]  # fmt: skip


unlike = st.permutations(range(1, 4 * BATCH + 1))


@given(numbers=unlike, world=st.integers(1, 4))
def test_rows_of_ranks_with_separate_batches_add_up(numbers: list[int], world: int) -> None:
    batches = [numbers[rank::4] for rank in range(world)]
    assert rows(seen(*batches), 0) == world * BATCH


@given(numbers=unlike, replicas=st.integers(1, 3), draw=st.randoms())
def test_ranks_with_the_same_rows_in_any_order_share_a_batch(
    numbers: list[int], replicas: int, draw: Random
) -> None:
    batches = [numbers[part::4] for part in (0, 1) for _ in range(replicas)]
    for batch in batches:
        draw.shuffle(batch)
    assert rows(seen(*batches), 0) == 2 * BATCH


@given(numbers=unlike, common=st.integers(4, BATCH // 2))
def test_shared_rows_count_once_if_no_rank_repeats_a_row(numbers: list[int], common: int) -> None:
    """For example, a part of each rank's batch is also in another's, which the count reveals."""
    mine, other = numbers[:BATCH], numbers[BATCH : 2 * BATCH]
    other[:common] = mine[:common]
    assert rows(seen(mine, other), 0) == 2 * BATCH - common


@given(numbers=unlike, common=st.integers(0, 3))
def test_few_shared_rows_are_treated_as_chance(numbers: list[int], common: int) -> None:
    mine, other = numbers[:BATCH], numbers[BATCH : 2 * BATCH]
    other[:common] = mine[:common]
    assert rows(seen(mine, other), 0) == 2 * BATCH


@given(numbers=unlike, common=st.integers(0, BATCH // 2))
def test_shared_rows_are_treated_as_chance_if_a_rank_repeats_rows(
    numbers: list[int], common: int
) -> None:
    mine, other = numbers[:BATCH], numbers[BATCH : 2 * BATCH]
    other[:common] = mine[:common]
    mine[-1] = mine[-2]
    assert rows(seen(mine, other), 0) == 2 * BATCH


@given(numbers=unlike, part=st.integers(1, BATCH))
def test_a_rank_with_part_of_another_batch_adds_no_rows(numbers: list[int], part: int) -> None:
    whole = numbers[:BATCH]
    padded = [*whole[:part], *[0] * (BATCH - part)]
    assert rows(seen(whole, padded), 0) == rows(seen(padded, whole), 0) == BATCH


@given(numbers=unlike, times=st.integers(1, 4))
def test_a_row_that_a_rank_repeats_counts_each_time(numbers: list[int], times: int) -> None:
    assert rows(seen(numbers[:8] * times), 0) == 8 * times
