"""Simulated steps equal closed forms exactly, and published bubbles within 1.5 points."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from harness.features.foresight.physics import simulate
from harness.features.foresight.physics.schedules import (
    Durations,
    PipelineSchedule,
    bubble_s,
    schedule_of,
)

EQUAL = Durations(1.0, 1.0, 1.0)
PUBLISHED = Path(__file__).parents[3] / "results/published/scaling.json"
FIXED = [PipelineSchedule.ALL_FORWARD, PipelineSchedule.ONE_EACH, PipelineSchedule.INTERLEAVED]
times = st.floats(0.01, 10)


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
@pytest.mark.parametrize(
    ("stages", "micros"), [(1, 4), (2, 8), (4, 12), (8, 24), (8, 64), (16, 64)]
)
def test_without_hops_the_bubble_is_the_closed_form(
    schedule: PipelineSchedule, stages: int, micros: int
) -> None:
    chunks = 3 if schedule is PipelineSchedule.INTERLEAVED and stages > 1 else 1
    played = simulate.pipeline_s(schedule, stages, micros, EQUAL, chunks)
    expected = 3 * micros + bubble_s(schedule, stages, EQUAL, chunks)
    assert played == pytest.approx(expected, rel=1e-9)


@given(
    schedule=st.sampled_from([PipelineSchedule.ALL_FORWARD, PipelineSchedule.ONE_EACH]),
    stages=st.integers(1, 8), micros=st.integers(8, 40), f=times, b=times, w=times,
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_closed_form_holds_for_any_durations(
    schedule: PipelineSchedule, stages: int, micros: int, f: float, b: float, w: float
) -> None:
    took = Durations(f, b, w)
    played = simulate.pipeline_s(schedule, stages, micros, took)
    assert played == pytest.approx(micros * took.total + bubble_s(schedule, stages, took), rel=1e-9)


@given(
    schedule=st.sampled_from(list(PipelineSchedule)), stages=st.integers(2, 8), micros=st.integers(1, 90),
    hop=st.floats(0, 0.05),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_communication_never_shortens_a_step_below_its_work(
    schedule: PipelineSchedule, stages: int, micros: int, hop: float
) -> None:
    chunks = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
    free = simulate.units(schedule, stages, micros, Durations(0.33, 0.35, 0.32), chunks)
    slow = simulate.units(schedule, stages, micros, Durations(0.33, 0.35, 0.32, hop), chunks)
    assert free >= micros * (1 - 1e-9)
    # A stage that chooses its work order may by chance choose a better one.
    if not schedule.splits:
        assert slow >= free - 1e-9


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_long_steps_are_extrapolated_correctly(schedule: PipelineSchedule) -> None:
    took = Durations(0.33, 0.34, 0.33, 0.01)
    chunks = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
    whole = simulate.pipeline_s(schedule, 4, 64, took, chunks) / took.total
    assert simulate.units(schedule, 4, 64, took, chunks) == pytest.approx(whole, rel=2e-3)


def test_simulated_bubbles_equal_published_ones_within_1_5_points() -> None:
    """The authors of zero-bubble schedules profiled on A100s; the only assumption is a hop of 1 %."""
    tables = json.loads(PUBLISHED.read_text())["tables"]
    (table,) = (t for t in tables if t["id"] == "zero_bubble_tab4_5")
    misses = []
    for row in table["points"]:
        longer, stages, micros = row["seq"] / row["hidden"], row["pp"], row["microbatches"]
        whole = 72 + 12 * longer
        took = Durations((24 + 4 * longer) / whole, (24 + 8 * longer) / whole, 24 / whole, 0.01)
        for name, published in row["bubble_rate_profiled"].items():
            schedule = schedule_of(name)
            assert schedule is not None
            if name in ("ZB-H1", "ZB-H2"):
                continue
            chunks = round((row["layers"] + 2) / stages) if name == "1F1B-I" else 1
            played = simulate.units(schedule, stages, micros, took, chunks)
            misses.append(abs(1 - micros / played - published))
    assert len(misses) == 48
    assert np.mean(misses) < 0.006
    assert np.quantile(misses, 0.9) < 0.015


def test_buckets_are_sent_in_sequence() -> None:
    ready, cost = [1.0, 2.0, 3.0], [0.5, 2.0, 1.0]
    played = simulate.buckets_s(
        [np.asarray(r) for r in ready], [np.asarray(x) for x in cost], np.asarray(3.0)
    )
    assert float(played) == 5.0  # The ends are 1.5, then 2 + 2, then 4 + 1.
    alone_s = simulate.buckets_s([np.asarray(3.0)], [np.asarray(2.0)], np.asarray(3.0))
    assert float(alone_s) == 5.0


@given(f=times, b=times, gather=times, scatter=times, layers=st.integers(3, 12))
@settings(max_examples=80, deadline=None)
def test_prefetched_all_gathers_follow_the_closed_form(
    f: float, b: float, gather: float, scatter: float, layers: int
) -> None:
    played = simulate.gathered_s(*(np.asarray(x) for x in (f, b, gather, scatter)), layers)
    closed = (
        gather
        + (layers - 1) * max(f, gather)
        + f
        + max(b, gather)
        + (layers - 2) * max(b, gather + scatter)
        + max(b, scatter)
        + scatter
    )
    assert float(played) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("1F1B at the largest microbatch count", PipelineSchedule.ONE_EACH),
        ("TP8 PP8 interleaved v=6", PipelineSchedule.INTERLEAVED),
        ("1F1B-I", PipelineSchedule.INTERLEAVED),
        ("ZB-H1", PipelineSchedule.ZERO_1P),
        ("zb2p", PipelineSchedule.ZERO_2P),
        ("GPipe", PipelineSchedule.ALL_FORWARD),
        ("FSDP", None),
    ],
)
def test_schedules_are_recognized_by_common_names(
    words: str, schedule: PipelineSchedule | None
) -> None:
    assert schedule_of(words) is schedule
