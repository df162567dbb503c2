"""Trends: the status of every series, and what is blamed for a change."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import pytest

from harness.features.history.night import Night
from harness.features.history.trends import Trend, TrendStatus, trends
from tests.nights import CASE, SUBJECT, night, noisy


def step(series: list[Trend], case: str = CASE) -> Trend:
    return next(t for t in series if t.series.case == case and t.series.quantity == "step_time")


def on_nodes(nights: list[Night], names: Sequence[str]) -> list[Night]:
    """The nights as measured on these nodes in turn."""
    out = []
    for i, one in enumerate(nights):
        kept = dataclasses.replace(one.cases[CASE], nodes=names[i % len(names)])
        out.append(dataclasses.replace(one, cases={CASE: kept}))
    return out


def test_a_slow_down_is_found_dated_sized_and_blamed() -> None:
    nights = noisy([0.1] * 20 + [0.105] * 10)
    newer = {**SUBJECT, "torch": "2.14.0"}
    nights = [dataclasses.replace(n, subject=newer) if i >= 20 else n for i, n in enumerate(nights)]
    trend = step(trends(nights))
    assert trend.status is TrendStatus.REGRESSED and trend.why == "torch 2.13.0 -> 2.14.0"
    assert trend.last is not None and trend.last.run == nights[20].run
    assert trend.last.low <= 0.05 <= trend.last.high and trend.last.size == pytest.approx(
        0.05, abs=0.01
    )


def test_the_other_way_is_an_improvement() -> None:
    assert step(trends(noisy([0.1] * 20 + [0.095] * 10))).status is TrendStatus.IMPROVED


def test_without_a_change_of_the_subject_the_environment_is_suspected() -> None:
    assert "suspect the environment" in step(trends(noisy([0.1] * 20 + [0.105] * 10))).why


def test_a_cause_a_night_away_is_named_as_such() -> None:
    nights = noisy([0.1] * 20 + [0.105] * 10)
    newer = {**SUBJECT, "driver": "590"}
    nights = [dataclasses.replace(n, subject=newer) if i >= 21 else n for i, n in enumerate(nights)]
    assert step(trends(nights)).why == "within 2 nights: driver 580.1 -> 590"


def test_a_bump_that_recovered_is_no_regression() -> None:
    trend = step(trends(noisy([0.1] * 20 + [0.11] * 10 + [0.1] * 10)))
    assert trend.status is TrendStatus.STABLE and trend.why.startswith("back to its earlier level")
    assert [t.back for t in trend.turns] == [False, True]


def test_a_half_recovered_bump_is_still_told() -> None:
    nights = on_nodes(noisy([0.1] * 20 + [0.11] * 10 + [0.104] * 10), "ab")
    trend = step(trends(nights))
    assert trend.status is TrendStatus.IMPROVED and not trend.turns[-1].back


def test_an_old_change_is_what_is_usual_now() -> None:
    trend = step(trends(noisy([0.1] * 20 + [0.105] * 70)))
    assert trend.status is TrendStatus.STABLE and "unchanged since" in trend.why


def test_one_wild_night_is_suspicious_and_nothing_more() -> None:
    assert step(trends(noisy([0.1] * 20 + [0.13]))).status is TrendStatus.SUSPICIOUS
    assert step(trends(noisy([0.1] * 20 + [0.13, 0.1]))).status is TrendStatus.STABLE


def test_few_nights_say_so() -> None:
    trend = step(trends(noisy([0.1] * 11)))
    assert (trend.status, trend.why) == (TrendStatus.INSUFFICIENT, "11 of 12 nights")


def test_nights_under_other_settings_are_not_compared() -> None:
    before = noisy([0.1] * 20)
    after = [night(20 + i, {CASE: 0.13}, settings={"NCCL_ALGO": "Tree"}) for i in range(5)]
    trend = step(trends([*before, *after]))
    assert trend.status is TrendStatus.NOT_COMPARABLE
    assert "NCCL_ALGO: - | Tree" in trend.why and "20 earlier nights differ" in trend.why
    again = [night(25 + i, {CASE: 0.1 + i * 1e-5}) for i in range(3)]
    assert step(trends([*before, *after, *again])).status is TrendStatus.STABLE, (
        "as before: compared"
    )


def test_another_definition_of_a_case_begins_a_series() -> None:
    changed = [night(20 + i, {CASE: 0.13}, hash="other") for i in range(4)]
    trend = step(trends([*noisy([0.1] * 20), *changed]))
    assert trend.status is TrendStatus.NOT_COMPARABLE and "definition of the case" in trend.why


def test_a_case_that_broke_is_errored_and_its_series_goes_on() -> None:
    broken = night(20, {CASE: 0.1}, error="rank 1: ValueError")
    trend = step(trends([*noisy([0.1] * 20), broken]))
    assert (trend.status, trend.why) == (TrendStatus.ERRORED, "rank 1: ValueError")
    later = [*noisy([0.1] * 20), broken, night(21, {CASE: 0.1})]
    assert step(trends(later)).status is TrendStatus.STABLE


def test_stand_ins_are_another_machine() -> None:
    nights = [night(i, {CASE: 0.1}, stand_in=i % 2 == 0) for i in range(30)]
    assert {t.series.machine for t in trends(nights)} == {"8x-h100", "paced-8x-h100"}


@pytest.mark.parametrize(
    ("ratio", "message"),
    [(1.0, "the machine, not the software"), (1.05, "the software: suite aaaa -> bbbb")],
)
def test_a_control_tells_the_machine_from_the_software(ratio: float, message: str) -> None:
    draw = random.Random(2)
    nights = []
    for i in range(30):
        late, noise = i >= 20, math.exp(draw.gauss(0, 0.002))
        subject = {**SUBJECT, "suite": "bbbb" if late else "aaaa"}
        over = (ratio if late else 1.0) * math.exp(draw.gauss(0, 0.001))
        steps = {CASE: 0.1 * noise * (1.05 if late else 1.0)}
        nights.append(night(i, steps, subject=subject, control=over))
    trend = step(trends(nights))
    assert trend.status is TrendStatus.REGRESSED and message in trend.why


def test_alarms_are_controlled_over_all_series_of_a_night() -> None:
    draw = random.Random(4)
    names = [f"case{i}" for i in range(400)]
    alarms = {TrendStatus.REGRESSED, TrendStatus.IMPROVED}
    listed = []
    for _ in range(3):  # A/A
        nights = [night(i, {n: math.exp(draw.gauss(0, 0.02)) for n in names}) for i in range(40)]
        listed += [t for t in trends(nights) if t.status in alarms]
    assert len(listed) <= 1, "each alone at 0.002 would tell of two or three"
    for n in range(30, 40):
        nights[n] = night(n, {c: v.values["step_time"].value * (1.1 if c == "case7" else 1)
                              for c, v in nights[n].cases.items()})  # fmt: skip
    assert [t.series.case for t in trends(nights) if t.status is TrendStatus.REGRESSED] == ["case7"]


def test_a_drift_is_told_without_a_night_or_a_commit() -> None:
    nights = noisy([0.1 * 1.001**i for i in range(60)])
    newer = {**SUBJECT, "torch": "2.14.0"}
    nights = [dataclasses.replace(n, subject=newer) if i >= 30 else n for i, n in enumerate(nights)]
    trend = step(trends(nights))
    assert trend.status is TrendStatus.DRIFTING and "gradually" in trend.why
    assert not trend.turns and "torch" not in trend.why


def test_a_level_is_confirmed_elsewhere_before_anyone_is_woken() -> None:
    """Nights that depend on each other, and a step: one node alone, and beside a pinned control."""
    draw = random.Random(6)
    noise = [0.0]
    for _ in range(59):
        noise.append(0.6 * noise[-1] + 0.8 * draw.gauss(0, 0.004))
    levels = [0.1 * math.exp(x + (0.011 if i >= 30 else 0)) for i, x in enumerate(noise)]
    alone = step(trends(noisy(levels, sd=0.0)))
    assert alone.dependence > 0, "else this shows nothing"
    assert alone.status is TrendStatus.UNCONFIRMED and "other nodes" in alone.why
    ratios = [1.0 if i < 30 else 1.011 for i in range(60)]
    beside = [
        night(i, {CASE: x}, control=r * math.exp(random.Random(i).gauss(0, 0.001)))
        for i, (x, r) in enumerate(zip(levels, ratios, strict=True))
    ]
    assert step(trends(beside)).status is TrendStatus.REGRESSED


def test_one_day_confirms_nothing_however_often_it_measured() -> None:
    nights = noisy([0.1] * 20 + [0.11] * 6)
    day = nights[20].started_at[:10]
    same = [
        dataclasses.replace(n, started_at=f"{day}T0{i}:00:00+00:00")
        for i, n in enumerate(nights[20:], 1)
    ]
    trend = step(trends([*nights[:20], *same]))
    assert trend.status is TrendStatus.UNCONFIRMED and "another day" in trend.why


def test_where_nobody_noted_the_node_another_node_may_be_all() -> None:
    nights = on_nodes(noisy([0.1] * 20 + [0.105] * 10), [""])
    trend = step(trends(nights))
    assert trend.status is TrendStatus.UNCONFIRMED and "nodes were not recorded" in trend.why


def test_a_node_that_is_slower_and_stays_is_no_regression() -> None:
    levels = [0.1] * 20 + [0.105] * 10
    assert step(trends(on_nodes(noisy(levels), "a"))).status is TrendStatus.REGRESSED
    moved = on_nodes(noisy(levels), ["a"] * 20 + ["b"] * 10)
    assert step(trends(moved)).status is not TrendStatus.REGRESSED


def test_a_figure_whose_level_changes_all_the_time_wanders() -> None:
    levels = [0.1, 0.105, 0.102, 0.108]
    trend = step(trends(noisy([x for x in levels for _ in range(12)], sd=0.001)))
    assert trend.status is TrendStatus.UNCONFIRMED and "unstable" in trend.why
