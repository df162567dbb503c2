"""The terms of goodput add up to the wall-clock time in ns; simulations agree with Daly's closed
form.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

from harness.features.recovery import goodput
from harness.features.recovery.goodput import TERMS, Costs
from harness.record.recovery import FaultedTraining, Mark, TrainingAttempt

COSTS = Costs(
    step_s=0.1, slow_s=0.0, save_s=0.4, detect_s=0.5, stop_s=0.1, restart_s=2.0, load_s=0.4
)
NS = st.integers(1, 10**10)


@st.composite
def played(draw: st.DrawFn) -> FaultedTraining:
    """Draw a training of 12 steps with up to three faults at any times."""
    now, done, saved, sittings = draw(NS), 0, 0, list[TrainingAttempt]()
    for number in range(draw(st.integers(0, 3)) + 1):
        began, marks = now, list[tuple[Mark, int, int]]()

        done = saved
        todo = [(Mark.READY, 0), (Mark.LOADED, saved)]
        last = number == 3 or draw(st.booleans())
        until = 12 if last else draw(st.integers(done, 11))
        while done < until:
            done += 1
            todo.append((Mark.STEP, done))
            if done % 4 == 0 and done < 12:
                todo.append((Mark.SAVED, done))
                saved = done
        for what, steps in todo:
            now += draw(NS)
            marks.append((what, steps, now))
        if last:
            sittings.append(TrainingAttempt(began_ns=began, marks=tuple(marks)))
            break
        # Rank 0 may reach a mark slightly after the fault.
        struck = now + draw(st.integers(-1, 10**9))
        noticed = struck + draw(NS)
        now = noticed + draw(NS)
        sittings.append(
            TrainingAttempt(
                began_ns=began, marks=tuple(marks), rank=1, struck_ns=struck, noticed_ns=noticed
            )
        )
    else:
        marks = [(Mark.READY, 0, now + 1), (Mark.LOADED, saved, now + 2)]
        marks += [(Mark.STEP, s, now + 2 + s) for s in range(saved + 1, 13)]
        sittings.append(TrainingAttempt(began_ns=now, marks=tuple(marks)))
    return FaultedTraining(
        case="c", world_size=2, steps=12, every=4, mtbf_s=1.0, seed=0, sittings=tuple(sittings)
    )


@settings(max_examples=300)
@given(played())
def test_terms_add_up_to_the_wall_clock(one: FaultedTraining) -> None:
    terms = goodput.terms_ns(one)
    assert sum(terms.values()) == goodput.wall_ns(one)
    assert all(ns >= 0 for ns in terms.values())
    assert 0 < goodput.goodput(one) <= 1


def test_repeated_steps_count_once() -> None:
    """Steps 5 and 6 are lost, and the part of step 7 before the fault."""
    first = [(Mark.READY, 0, 100), (Mark.LOADED, 0, 100)]
    first += [(Mark.STEP, s, 100 + 10 * s) for s in range(1, 5)]
    first += [(Mark.SAVED, 4, 145), (Mark.STEP, 5, 155), (Mark.STEP, 6, 165)]
    second = [(Mark.READY, 0, 230), (Mark.LOADED, 4, 236)]
    second += [(Mark.STEP, s, 236 + 10 * (s - 4)) for s in range(5, 9)]
    one = FaultedTraining(
        case="c", world_size=2, steps=8, every=4, mtbf_s=1.0, seed=0,
        sittings=(
            TrainingAttempt(began_ns=0, marks=tuple(first), rank=1, struck_ns=168, noticed_ns=180),
            TrainingAttempt(began_ns=200, marks=tuple(second)),
        ),
    )  # fmt: skip
    assert goodput.terms_ns(one) == dict(
        train=80, slow=0, checkpoint=5, detect=12, stop=20, restart=130, load=6, recomputed=23
    )


def test_costs_are_derived_from_one_training() -> None:
    first = [(Mark.READY, 0, 100), (Mark.LOADED, 0, 100), (Mark.STEP, 1, 110)]
    one = FaultedTraining(
        case="c", world_size=2, steps=1, every=4, mtbf_s=None, seed=0,
        sittings=(
            TrainingAttempt(began_ns=0, marks=(), rank=1, struck_ns=40, noticed_ns=50),
            TrainingAttempt(began_ns=60, marks=tuple(first)),
        ),
    )  # fmt: skip
    costs = goodput.costs([one])
    assert costs.step_s == pytest.approx(10e-9) and costs.detect_s == pytest.approx(10e-9)


@pytest.mark.parametrize("mtbf_s", [30.0, 120.0, 1000.0])
@pytest.mark.parametrize("every", [10, 50, 200])
def test_simulations_agree_with_the_closed_form(mtbf_s: float, every: int) -> None:
    """The tolerance is two points, because faults are random and wait for the current step."""
    many = [
        goodput.play(COSTS, 10_000, every, goodput.schedule(mtbf_s, seed, 2)) for seed in range(40)
    ]
    trained = math.fsum(t["train"] for t in many) / math.fsum(sum(t.values()) for t in many)
    assert trained == pytest.approx(goodput.expected(COSTS, every, mtbf_s), abs=0.02)


@settings(max_examples=50)
@given(st.floats(1.0, 1e4), st.integers(0, 100), st.integers(1, 300))
def test_simulated_terms_are_complete(mtbf_s: float, seed: int, every: int) -> None:
    faults = itertools.islice(goodput.schedule(mtbf_s, seed, 4), 5)
    terms = goodput.play(COSTS, 500, every, itertools.chain(faults, [(math.inf, 0)]))
    assert set(terms) == set(TERMS) and terms["train"] == pytest.approx(50.0)


@settings(max_examples=30)
@given(st.floats(60.0, 1e5))
def test_no_checkpoint_interval_is_better_than_the_best(mtbf_s: float) -> None:
    best = goodput.best_every(COSTS, mtbf_s)
    top = goodput.expected(COSTS, best, mtbf_s)
    for factor in (0.3, 0.7, 1.5, 3):
        other = max(1, round(best * factor))
        assert goodput.expected(COSTS, other, mtbf_s) <= top * 1.005


def test_a_fault_schedule_has_its_mean_time() -> None:
    times = [at for at, _ in itertools.islice(goodput.schedule(10.0, 1, 4), 4000)]
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert fmean(gaps) == pytest.approx(10.0, rel=0.05)


def simulated(costs: Costs, steps: int, every: int, faults: list[float]) -> float:
    """Return the wall-clock time of a training from a simulation of events.

    The next fault is compared with the end of the current activity: a whole start, a whole interval
    or a whole checkpoint.
    """
    now = 0.0
    saved = 0
    todo = ["start"]
    while saved < steps:
        until = min(saved + every, steps)
        took_s = {
            "start": costs.restart_s + (costs.load_s if now else 0.0),
            "train": (until - saved) * (costs.step_s + costs.slow_s),
            "save": costs.save_s,
        }[todo[0]]
        fault = faults[bisect.bisect_right(faults, now)]
        if fault < now + took_s:
            now = fault + costs.detect_s + costs.stop_s
            todo = ["start"]
            continue
        now += took_s
        kept = todo[0] == "save" or (todo[0] == "train" and until == steps)
        saved = until if kept else saved
        todo = ["save"] if todo[0] == "train" else ["train"]
    return now


@pytest.mark.parametrize("world", range(20))
def test_simulations_agree_with_a_simulation_of_events(world: int) -> None:
    """The mean time between faults is 1.5 to 12 recoveries; the results differ by less than a
    point.
    """
    draw = random.Random(world)
    costs = Costs(
        step_s=draw.choice([1.0, 7.0]),
        slow_s=draw.choice([0.0, 0.1]),
        save_s=draw.uniform(0, 60),
        detect_s=draw.choice([1, 10, 60]),
        stop_s=draw.uniform(0, 10),
        restart_s=draw.uniform(10, 900),
        load_s=draw.uniform(0, 200),
    )
    mtbf_s = costs.again_s * draw.uniform(1.5, 12)
    every = max(1, round(goodput.best_every(costs, mtbf_s) * draw.uniform(0.4, 2.5)))
    steps = round(20 * mtbf_s / costs.step_s)
    faults = list(itertools.islice(goodput.schedule(mtbf_s, world, 2), 2000))
    played = goodput.share(goodput.play(costs, steps, every, iter(faults)))
    trained_s = steps * costs.step_s
    assert played == pytest.approx(
        trained_s / simulated(costs, steps, every, [at for at, _ in faults]), abs=0.01
    )


def test_a_training_that_can_never_save_is_given_up() -> None:
    """Recovery takes 50 times the mean time between faults, so e^50 starts would be needed."""
    terms = goodput.play(COSTS, 100, 10, goodput.schedule(COSTS.again_s / 50, 1, 2))
    assert terms["train"] == 0
