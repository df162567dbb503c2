"""Blocks measure arms forwards and backwards in a random order; interrupted ones are completed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from harness.measure import orders as blocks
from harness.record import RunRecord


@given(number=st.integers(0, 5), attempt=st.integers(0, 1), seed=st.integers(0, 99))
def test_every_arm_is_measured_forwards_and_backwards(
    main_job: RunRecord, number: int, attempt: int, seed: int
) -> None:
    """Therefore a linear drift affects all arms equally."""
    plan = max(main_job.plans, key=lambda p: len(p.arms))
    plan = replace(plan, protocol=replace(plan.protocol, seed=seed))
    block = blocks.drawn(plan, attempt, number, [[arm] for arm in plan.arms])
    passes = [name for _, slot in block.passes for name in slot]
    assert Counter(passes) == {arm.name: 2 for arm in plan.arms}
    places: dict[str, list[int]] = {}
    for place, name in enumerate(passes):
        places.setdefault(name, []).append(place)
    assert len({sum(both) for both in places.values()}) == 1, "each is as early as it is late"
    assert {turn for turn, _ in block.passes} == {2 * number, 2 * number + 1}


def test_each_block_has_a_new_random_order(main_job: RunRecord) -> None:
    plan = max(main_job.plans, key=lambda p: len(p.arms))
    slots = [[arm] for arm in plan.arms]
    orders = {blocks.drawn(plan, 0, number, slots).arms for number in range(20)}
    assert len(orders) > 1
    assert blocks.drawn(plan, 0, 3, slots) == blocks.drawn(plan, 0, 3, slots[::-1])


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_the_missing_launches_of_an_interrupted_block_are_found(
    main_job: RunRecord, lost: int
) -> None:
    plan = main_job.plans[0]
    block = next(b for b in main_job.blocks if b.plan == plan.hash and not b.attempt)
    launches = [x for x in main_job.by_plan[plan.hash] if x.block == block.number and not x.attempt]
    timed = [x for x in launches if str(x.purpose) == "timed"]
    run: Any = SimpleNamespace(timed=lambda _: timed[lost:])
    missing = [
        (turn, arm.name) for turn, slot in blocks.missing_timed(run, plan, block) for arm in slot
    ]
    assert sorted(missing) == sorted((x.turn, x.arm) for x in timed[:lost])
