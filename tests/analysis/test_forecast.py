"""Forecasts of the remaining launches of a run, from its record at any point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.analysis import forecast
from harness.cases import Arm, Plan
from harness.record import LaunchRecord, Purpose, RunRecord


def one_by_one(plan: Plan, arms: Sequence[Arm]) -> list[list[Arm]]:
    return [[arm] for arm in arms]


def all_at_once(plan: Plan, arms: Sequence[Arm]) -> list[list[Arm]]:
    return [list(arms)] if arms else []


def coming(
    run: RunRecord,
    launches: Sequence[LaunchRecord] = (),
    plans: Sequence[Plan] = (),
    slots: forecast.Slots = one_by_one,
) -> list[forecast.PendingLaunches]:
    plans = plans or run.plans
    arms = {plan.hash: plan.arms for plan in plans}
    expected = forecast.Forecast(
        plans=plans,
        arms=arms,
        described=run.described,
        machine=run.machine,
        thresholds=run.thresholds,
        slots=slots,
        launches=launches,
        windows=run.windows,
    )
    return list(expected.coming())


def test_a_complete_run_has_no_remaining_launches(sample_run: RunRecord) -> None:
    assert coming(sample_run, sample_run.launches) == []


def test_the_forecast_equals_the_launches_that_followed(sample_run: RunRecord) -> None:
    """The counts per purpose agree, except for further blocks, which cannot be predicted."""
    wanted = Counter(x.purpose for x in sample_run.launches)
    counts = Counter(c.purpose for c in coming(sample_run) if len(c.arms) == 1)
    least = 2 * sample_run.plans[0].protocol.min_blocks * len(sample_run.plans[0].arms)
    assert counts[Purpose.TIMED] >= least
    for purpose in (Purpose.GATE, Purpose.PILOT, Purpose.REFERENCE, Purpose.PROFILE):
        assert counts[purpose] == wanted[purpose], purpose


@pytest.mark.parametrize("share", [0.4, 0.5, 0.6, 0.8])
def test_the_remaining_time_is_predicted_within_20_percent(
    sample_run: RunRecord, share: float
) -> None:
    cut = int(share * len(sample_run.launches))
    done, rest = sample_run.launches[:cut], sample_run.launches[cut:]
    left = sum(c.seconds for c in coming(sample_run, done))
    assert left == pytest.approx(sum(x.wall_s for x in rest), rel=0.2)


def test_plans_share_the_launches_that_both_need(sample_run: RunRecord) -> None:
    first = sample_run.plans[0]
    second = replace(first, name="another", protocol=replace(first.protocol, seed=7))
    assert second.hash != first.hash
    both = coming(sample_run, plans=[first, second])
    again = Counter(c.purpose for c in both if c.plan is second)
    assert set(again) == {Purpose.TIMED}


def test_concurrent_worlds_take_as_long_as_the_longest(sample_run: RunRecord) -> None:
    def timed(slots: forecast.Slots) -> list[float]:
        return [c.seconds for c in coming(sample_run, slots=slots) if c.purpose is Purpose.TIMED]

    alone, packed = timed(one_by_one), timed(all_at_once)
    assert len(packed) < len(alone) and max(packed) == max(alone)
    pilots = [c for c in coming(sample_run, slots=all_at_once) if c.purpose is Purpose.PILOT]
    probes = [c for c in coming(sample_run, slots=all_at_once) if c.purpose is Purpose.PROBE]
    assert len(pilots) == 1
    assert len(probes) == 4, "two baselines are probed alone and beside other worlds"
