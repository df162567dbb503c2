"""Pipeline schedules of torch have the properties that the literature states."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from harness.training.parallel.schedule import SCHEDULES, Schedule

SHAPES = [(2, 2), (2, 8), (3, 6), (4, 8), (4, 16), (8, 16)]


def schedule(name: str, ranks: int, micro: int) -> Schedule:
    return Schedule.of(dict(schedule=name, microbatches=micro), ranks)


def bubble(name: str, ranks: int, micro: int) -> float:
    return 1 - schedule(name, ranks, micro).played().efficiency


@given(st.integers(1, 8), st.integers(1, 24))
def test_gpipe_leaves_the_bubble_of_its_paper(ranks: int, micro: int) -> None:
    assert bubble("gpipe", ranks, micro) == pytest.approx((ranks - 1) / (micro + ranks - 1))


@given(st.integers(2, 8), st.integers(0, 16))
def test_1f1b_has_the_bubble_of_gpipe_and_keeps_less(ranks: int, more: int) -> None:
    micro = ranks + more
    assert bubble("1f1b", ranks, micro) == pytest.approx(bubble("gpipe", ranks, micro))
    kept = [schedule(s, ranks, micro).most_in_flight(0, lambda _: 1.0) for s in ("1f1b", "gpipe")]
    assert kept == [ranks, micro]


@pytest.mark.parametrize(("ranks", "micro"), SHAPES)
def test_several_stages_a_rank_divide_the_bubble(ranks: int, micro: int) -> None:
    """Narayanan et al., 2021: (p-1) / (v m + p - 1) with v stages a rank."""
    wanted = (ranks - 1) / (2 * micro + ranks - 1)
    assert bubble("interleaved", ranks, micro) == pytest.approx(wanted)
    assert bubble("looped_bfs", ranks, micro) == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["interleaved_zb", "zbv", "dualpipev"])
@pytest.mark.parametrize(("ranks", "micro"), [s for s in SHAPES if s[1] >= 2 * s[0]])
def test_zero_bubble_schedules_are_below_all_others(name: str, ranks: int, micro: int) -> None:
    assert bubble(name, ranks, micro) < bubble("interleaved", ranks, micro)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro"), SHAPES)
def test_every_micro_batch_passes_every_stage_once(name: str, ranks: int, micro: int) -> None:
    if name == "dualpipev" and micro < 2 * ranks:
        return  # torch refuses it
    made = schedule(name, ranks, micro)
    done = [a for order in made.orders for a in order]
    assert len(done) == len(set(done))
    for what in ("F", "BW"):
        assert {(a.stage, a.micro) for a in done if a.what in what} == {
            (s, m) for s in range(made.stages) for m in range(micro)
        }
    assert sorted(made.order()) == list(range(micro))


@pytest.mark.parametrize(
    ("name", "ranks", "micro", "says"),
    [
        ("1f1b", 4, 2, "cannot fill"),
        ("gpipes", 2, 2, "there is no schedule"),
        ("zbv", 2, 0, "at least 1"),
    ],
)
def test_impossible_schedules_are_refused(name: str, ranks: int, micro: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        schedule(name, ranks, micro)


@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 8), (8, 16)])
def test_the_ideal_of_unequal_stages_is_bounded_by_the_largest(stages: int, micro: int) -> None:
    """The bound is the largest stage's work plus one pass of a micro-batch through the others."""
    weights = [1.0] * (stages - 1) + [1.5]
    seen = schedule("1f1b", stages, micro).played(weights).efficiency
    whole, largest = sum(weights), max(weights)
    shortest = 3 * (micro * largest + whole - largest)  # forward 1 and backward 2
    assert seen <= 3 * micro * whole / stages / shortest + 1e-12
    equal = schedule("1f1b", stages, micro).played().efficiency
    assert equal == pytest.approx(micro / (micro + stages - 1))
    assert equal * whole / stages / largest - 0.05 < seen < equal
