"""Facts follow from the events of a loop alone, and verify finds events that were changed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.analysis.script.facts import CYCLE, LoopEvents, facts, ready_s, small
from harness.record.store import Samples

STEP_NS = 1_000_000
OPERATIONS = ("all_reduce", "broadcast", "recv")


def loop(steps: int = 6, period: int = 1, cut: int = 2, rows: int = 8, **events: Any) -> LoopEvents:
    """Return a loop of equal steps in which each cycle trains on ``rows`` rows that were drawn."""
    cycles = np.zeros((steps * period + 1, len(CYCLE)))
    cycles[:-1, CYCLE.index("backwards")] = 1
    cycles[:-1, CYCLE.index("drawn")] = rows
    cycles[:-1, CYCLE.index("steps")] = np.tile(np.arange(period), steps)
    cycles[cut * period + 1 :, CYCLE.index("reads")] = np.nan
    given_ = {
        "cycles": cycles,
        "rows": np.stack([np.full((1, steps * period), n) for n in (rows, 1)]),
        "edges_ns": STEP_NS * np.arange(steps + 1),
        "seen": 1 + np.arange(steps * rows).reshape(steps, rows),
        **events,
    }
    samples = Samples(
        marks_s=np.arange(steps + 1.0),
        loss=np.zeros(steps),
        sample_ids=np.zeros((steps, 0), np.int64),
        rss_bytes=np.zeros(steps, np.int64),
        step_s=np.ones(steps),
        **given_,
    )
    return LoopEvents(samples=samples, cut=cut, operations=OPERATIONS)


def changed(of: LoopEvents, column: str, cycle: int, value: float) -> LoopEvents:
    cycles = of.samples.cycles
    assert cycles is not None
    cycles = cycles.copy()
    cycles[cycle, CYCLE.index(column)] = value
    return dataclasses.replace(of, samples=dataclasses.replace(of.samples, cycles=cycles))


def known(of: LoopEvents) -> dict[str, Any]:
    return facts(of, parallel=True, sharded=False)


@given(st.integers(1, 3), st.integers(0, 3), st.integers(2, 6), st.integers(1, 9))
def test_a_regular_loop_has_no_unusual_fact(period: int, cut: int, steps: int, rows: int) -> None:
    of = known(loop(steps + cut, period, cut, rows))
    assert of["regular"] and not of["unusual"] and not of["skips"] and of["as_drawn"]
    assert (of["backwards"], of["drawn"], of["usual"], of["spread"]) == (
        period, rows * period, 1.0, 0.0
    )  # fmt: skip
    assert (of["distinct"], of["again"], of["idle"], of["reads"]) == (1.0, 0.0, 0.0, 0.0)


def test_a_step_with_more_passes_is_unusual() -> None:
    of = known(changed(loop(), "backwards", 4, 2))
    assert of["unusual"] == 1 and of["regular"] and of["backwards"] == 1
    assert of["passes"] != known(loop())["passes"]


def test_another_optimizer_in_a_step_makes_the_loop_irregular() -> None:
    assert not known(changed(loop(), "steps", 4, 7))["regular"]


def test_the_warm_up_is_not_part_of_the_window() -> None:
    of = changed(changed(loop(), "backwards", 0, 5), "drawn", 1, 500)
    assert {**known(of)} == {**known(loop())}


def test_bursts_are_the_mean_above_the_median() -> None:
    of = loop(steps=6, cut=2)
    for cycle in range(2, 6):
        of = changed(of, "ahead_s", cycle, 1.0 if cycle < 5 else 5.0)
    assert (known(of)["ahead_s"], known(of)["bursts_s"]) == (1.0, 1.0)


def test_evaluations_before_the_window_are_counted_apart() -> None:
    of = loop(steps=4, cut=1)
    for cycle, count in enumerate([0, 3, 4, 4, 9]):
        of = changed(of, "evaluations", cycle, count)
    assert (known(of)["acted"], known(of)["evaluations"]) == (3, 6)


def test_samples_that_recur_and_batches_that_repeat() -> None:
    seen = np.ones((6, 4), np.int64)
    of = known(loop(rows=4, seen=seen))
    assert (of["distinct"], of["again"]) == (0.25, 1.0)
    seen = np.zeros((6, 4), np.int64)  # no step was looked at
    of = known(loop(rows=4, seen=seen))
    assert (of["distinct"], of["again"]) == (1.0, 0.0)


def at(step: float) -> int:
    return round(STEP_NS * step)


def test_collectives_of_the_last_step_are_counted_by_operation() -> None:
    issued = [(0, 8000, at(step + 0.5)) for step in range(6)]
    issued += [(1, 900, at(5.6)), (2, 900, at(5.7)), (0, 4, at(5.8))]
    of = loop(issued=np.array(sorted(issued, key=lambda row: row[2])))
    counts = {name: (c.count, c.payload_bytes) for name, c in known(of)["collectives"].items()}
    assert counts == {"all_reduce": (2, 8004), "broadcast": (1, 900)}
    assert known(of)["even"] and not known(of)["silent"] and small(of) == 1


def test_a_silent_step_is_counted_and_dropped_steps_are_not() -> None:
    issued = np.array([(0, 8000, at(step + 0.5)) for step in (2, 3, 5)])
    of = known(loop(issued=issued))
    assert not of["even"] and of["silent"] == 1
    late = np.array(
        [(0, 8000, at(step + 0.5)) for step in (4, 5)]
    )  # the recorder kept the last two
    of = known(loop(issued=late))
    assert of["even"] and not of["silent"]


@pytest.mark.parametrize(("operation", "sharded"), [(0, True), (1, False)])
def test_an_exchange_within_a_forward_pass_divides_the_model(operation: int, sharded: bool) -> None:
    of = loop(
        issued=np.array([(operation, 4096, at(5.2))]),
        passes_ns=np.array([(0, at(5.1), at(5.3))]),
    )
    assert facts(of, parallel=False, sharded=False)["sharded"] is sharded
    assert facts(of, parallel=False, sharded=False)["cut"] is sharded
    assert not facts(of, parallel=True, sharded=False)["cut"]
    assert facts(of, parallel=True, sharded=True)["sharded"]


def test_gradients_are_ready_at_the_last_large_collective_of_a_step() -> None:
    issued = np.array([(0, 8000, at(0.2)), (0, 8000, at(0.4)), (0, 4, at(0.9)), (0, 8000, at(2.5))])
    times = ready_s(loop(steps=3, cut=0, issued=issued))
    assert times[0] == pytest.approx(0.4e-3) and times[2] == pytest.approx(2.5e-3)
    assert math.isnan(times[1])
