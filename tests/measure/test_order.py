"""Orders of launches: their labels and their random draws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.packing import Placement
from harness.cases import Window
from harness.measure.order import Order
from harness.record import Purpose, RunRecord


@pytest.fixture
def order(sample_run: RunRecord) -> Order:
    plan = sample_run.plans[0]
    return Order(
        plan=plan, arm=plan.arms[0], purpose=Purpose.TIMED, window=Window(steps=4, cut=1), turn=3
    )


@pytest.mark.parametrize(
    ("purpose", "attempt", "label"),
    [
        (Purpose.TIMED, 0, "t03"),
        (Purpose.TIMED, 1, "c03"),
        (Purpose.PROFILE, 0, "p03"),
        (Purpose.PROFILE, 1, "q03"),
        (Purpose.GATE, 0, "gate"),
        (Purpose.PILOT, 0, "pilot"),
    ],
)
def test_a_label_states_purpose_and_turn(
    order: Order, purpose: Purpose, attempt: int, label: str
) -> None:
    changed = replace(order, purpose=purpose, attempt=attempt)
    assert changed.label == label
    assert changed.block == (1 if purpose in (Purpose.TIMED, Purpose.PROFILE) else -1)


def test_draws_are_unique_and_reproducible(order: Order) -> None:
    arms = order.plan.arms
    others = [
        replace(order, arm=arm, turn=turn, attempt=attempt, purpose=purpose)
        for arm in arms
        for turn in range(4)
        for attempt in (0, 1)
        for purpose in (Purpose.TIMED, Purpose.PILOT)
    ]
    draws = [x.draw for x in others]
    assert len(set(draws)) == len(draws)
    assert [replace(x).draw for x in others] == draws


def test_probes_at_different_placements_have_different_draws(order: Order) -> None:
    """The placement of a timed launch is drawn separately and changes no other draw."""
    seats = [Placement(hosts=(0,), devices=(i,)) for i in range(3)]
    probes = {replace(order, purpose=Purpose.PROBE, seat=seat).draw for seat in seats}
    timed = {replace(order, seat=seat).draw for seat in seats}
    assert (len(probes), len(timed)) == (3, 1)
