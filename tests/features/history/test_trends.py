"""Trends: the status of every series, and the suspected cause of a change."""

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
    """Return the nightly runs as if they had been measured on these nodes in turn."""
    out = []
    for i, one in enumerate(nights):
        kept = dataclasses.replace(one.cases[CASE], nodes=names[i % len(names)])
        out.append(dataclasses.replace(one, cases={CASE: kept}))
    return out


def test_a_slowdown_is_found_with_date_size_and_cause() -> None:
    nights = noisy([0.1] * 20 + [0.105] * 10)
    newer = {**SUBJECT, "torch": "2.14.0"}
    nights = [dataclasses.replace(n, subject=newer) if i >= 20 else n for i, n in enumerate(nights)]
    trend = step(trends(nights))
    assert trend.status is TrendStatus.REGRESSED and trend.why == "torch 2.13.0 -> 2.14.0"
    assert trend.last is not None and trend.last.run == nights[20].run
    assert trend.last.low <= 0.05 <= trend.last.high and trend.last.size == pytest.approx(
        0.05, abs=0.01
    )


def test_a_speedup_is_an_improvement() -> None:
    assert step(trends(noisy([0.1] * 20 + [0.095] * 10))).status is TrendStatus.IMPROVED


def test_without_a_change_of_the_subject_the_environment_is_suspected() -> None:
    assert "suspect the environment" in step(trends(noisy([0.1] * 20 + [0.105] * 10))).why


def test_a_cause_one_run_away_is_reported_with_that_distance() -> None:
    nights = noisy([0.1] * 20 + [0.105] * 10)
    newer = {**SUBJECT, "driver": "590"}
    nights = [dataclasses.replace(n, subject=newer) if i >= 21 else n for i, n in enumerate(nights)]
    assert step(trends(nights)).why == "within 2 nights: driver 580.1 -> 590"


def test_a_recovered_slowdown_is_not_a_regression() -> None:
    trend = step(trends(noisy([0.1] * 20 + [0.11] * 10 + [0.1] * 10)))
    assert trend.status is TrendStatus.STABLE and trend.why.startswith("back to its earlier level")
    assert [t.back for t in trend.turns] == [False, True]


def test_a_partly_recovered_slowdown_is_reported() -> None:
    nights = on_nodes(noisy([0.1] * 20 + [0.11] * 10 + [0.104] * 10), "ab")
    trend = step(trends(nights))
    assert trend.status is TrendStatus.IMPROVED and not trend.turns[-1].back


def test_an_old_change_is_the_new_normal_level() -> None:
    trend = step(trends(noisy([0.1] * 20 + [0.105] * 70)))
    assert trend.status is TrendStatus.STABLE and "unchanged since" in trend.why


def test_one_outlier_is_only_suspicious() -> None:
    assert step(trends(noisy([0.1] * 20 + [0.13]))).status is TrendStatus.SUSPICIOUS
    assert step(trends(noisy([0.1] * 20 + [0.13, 0.1]))).status is TrendStatus.STABLE


def test_too_few_nightly_runs_are_reported() -> None:
    trend = step(trends(noisy([0.1] * 11)))
    assert (trend.status, trend.why) == (TrendStatus.INSUFFICIENT, "11 of 12 runs")


def test_nightly_runs_with_other_settings_are_not_compared() -> None:
    before = noisy([0.1] * 20)
    after = [night(20 + i, {CASE: 0.13}, settings={"NCCL_ALGO": "Tree"}) for i in range(5)]
    trend = step(trends([*before, *after]))
    assert trend.status is TrendStatus.NOT_COMPARABLE
    assert "NCCL_ALGO: - | Tree" in trend.why and "20 earlier nights differ" in trend.why
    again = [night(25 + i, {CASE: 0.1 + i * 1e-5}) for i in range(3)]
    assert step(trends([*before, *after, *again])).status is TrendStatus.STABLE, (
        "runs with the earlier settings are comparable again"
    )


def test_another_definition_of_a_case_starts_a_new_series() -> None:
    changed = [night(20 + i, {CASE: 0.13}, hash="other") for i in range(4)]
    trend = step(trends([*noisy([0.1] * 20), *changed]))
    assert trend.status is TrendStatus.NOT_COMPARABLE and "definition of the case" in trend.why


def test_a_failed_case_is_an_error_and_its_series_continues() -> None:
    broken = night(20, {CASE: 0.1}, error="rank 1: ValueError")
    trend = step(trends([*noisy([0.1] * 20), broken]))
    assert (trend.status, trend.why) == (TrendStatus.ERRORED, "rank 1: ValueError")
    later = [*noisy([0.1] * 20), broken, night(21, {CASE: 0.1})]
    assert step(trends(later)).status is TrendStatus.STABLE


def test_simulated_compute_counts_as_another_machine() -> None:
    nights = [night(i, {CASE: 0.1}, stand_in=i % 2 == 0) for i in range(30)]
    assert {t.series.machine for t in trends(nights)} == {"8x-h100", "paced-8x-h100"}


@pytest.mark.parametrize(
    ("ratio", "message"),
    [(1.0, "the machine, not the software"), (1.05, "the software: suite aaaa -> bbbb")],
)
def test_a_control_distinguishes_machine_from_software(ratio: float, message: str) -> None:
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


def test_false_alarms_are_controlled_over_all_series_of_a_run() -> None:
    draw = random.Random(4)
    names = [f"case{i}" for i in range(400)]
    alarms = {TrendStatus.REGRESSED, TrendStatus.IMPROVED}
    listed = []
    for _ in range(3):  # Nothing differs between these runs (A/A).
        nights = [night(i, {n: math.exp(draw.gauss(0, 0.02)) for n in names}) for i in range(40)]
        listed += [t for t in trends(nights) if t.status in alarms]
    assert len(listed) <= 1, "at 0.002 per series, two or three would be reported"
    for n in range(30, 40):
        nights[n] = night(n, {c: v.values["step_time"].value * (1.1 if c == "case7" else 1)
                              for c, v in nights[n].cases.items()})  # fmt: skip
    assert [t.series.case for t in trends(nights) if t.status is TrendStatus.REGRESSED] == ["case7"]


def test_a_drift_is_reported_without_a_date_or_commit() -> None:
    nights = noisy([0.1 * 1.001**i for i in range(60)])
    newer = {**SUBJECT, "torch": "2.14.0"}
    nights = [dataclasses.replace(n, subject=newer) if i >= 30 else n for i, n in enumerate(nights)]
    trend = step(trends(nights))
    assert trend.status is TrendStatus.DRIFTING and "gradually" in trend.why
    assert not trend.turns and "torch" not in trend.why


def test_a_level_shift_needs_confirmation_on_other_nodes_or_by_a_control() -> None:
    """Nightly runs with dependent noise and a step: on a single node, and beside a pinned control."""
    draw = random.Random(6)
    noise = [0.0]
    for _ in range(59):
        noise.append(0.6 * noise[-1] + 0.8 * draw.gauss(0, 0.004))
    levels = [0.1 * math.exp(x + (0.011 if i >= 30 else 0)) for i, x in enumerate(noise)]
    alone = step(trends(noisy(levels, sd=0.0)))
    assert alone.dependence > 0, "the noise must be dependent"
    assert alone.status is TrendStatus.UNCONFIRMED and "other nodes" in alone.why
    ratios = [1.0 if i < 30 else 1.011 for i in range(60)]
    beside = [
        night(i, {CASE: x}, control=r * math.exp(random.Random(i).gauss(0, 0.001)))
        for i, (x, r) in enumerate(zip(levels, ratios, strict=True))
    ]
    assert step(trends(beside)).status is TrendStatus.REGRESSED


def test_repeated_runs_on_one_day_do_not_confirm_a_change() -> None:
    nights = noisy([0.1] * 20 + [0.11] * 6)
    day = nights[20].started_at[:10]
    same = [
        dataclasses.replace(n, started_at=f"{day}T0{i}:00:00+00:00")
        for i, n in enumerate(nights[20:], 1)
    ]
    trend = step(trends([*nights[:20], *same]))
    assert trend.status is TrendStatus.UNCONFIRMED and "another day" in trend.why


def test_without_recorded_nodes_a_change_is_unconfirmed() -> None:
    nights = on_nodes(noisy([0.1] * 20 + [0.105] * 10), [""])
    trend = step(trends(nights))
    assert trend.status is TrendStatus.UNCONFIRMED and "nodes were not recorded" in trend.why


def test_a_move_to_a_slower_node_is_not_a_regression() -> None:
    levels = [0.1] * 20 + [0.105] * 10
    assert step(trends(on_nodes(noisy(levels), "a"))).status is TrendStatus.REGRESSED
    moved = on_nodes(noisy(levels), ["a"] * 20 + ["b"] * 10)
    assert step(trends(moved)).status is not TrendStatus.REGRESSED


def test_a_figure_with_frequent_level_changes_is_unstable() -> None:
    levels = [0.1, 0.105, 0.102, 0.108]
    trend = step(trends(noisy([x for x in levels for _ in range(12)], sd=0.001)))
    assert trend.status is TrendStatus.UNCONFIRMED and "unstable" in trend.why
