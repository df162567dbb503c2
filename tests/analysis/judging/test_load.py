"""Load: what others can have taken from a launch, of windows whose shares are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harness.analysis.judging import biases
from harness.record import LaunchRecord, Purpose, RunRecord

shares = st.floats(0, 1.5)


def one(run: RunRecord) -> LaunchRecord:
    """A timed launch of two ranks, with nothing beside it."""
    launch = next(x for x in run.launches if x.purpose is Purpose.TIMED and len(x.ranks) == 2)
    quiet = tuple(
        replace(r, waited_s=0.0, throttled_s=0.0, planted_s=None, affinity=(i,))
        for i, r in enumerate(launch.ranks)
    )
    return replace(launch, ranks=quiet, foreign_load=0.0)


def alone(run: RunRecord, launch: LaunchRecord) -> RunRecord:
    """A record with this launch only: it is its case's best."""
    return replace(run, launches=(launch,))


def share(run: RunRecord, launch: LaunchRecord, **more: bool) -> float | None:
    return biases.lost_to_load([launch], alone(run, launch), beside=False, **more)


def test_of_a_quiet_launch_nothing_was_taken(sample_run: RunRecord) -> None:
    assert share(sample_run, one(sample_run)) == 0.0


@pytest.mark.parametrize("waited", [0.05, 0.2, 0.4])
def test_ranks_that_waited_lost_as_long_as_others_worked(
    sample_run: RunRecord, waited: float
) -> None:
    """One of two ranks waits for a share of its window; others keep half of its core busy."""
    launch = one(sample_run)
    window_s = max(r.window_s for r in launch.ranks)
    first, second = launch.ranks
    ranks = (replace(first, waited_s=waited * window_s), second)
    taken = share(sample_run, replace(launch, ranks=ranks, foreign_load=0.5))
    assert taken == pytest.approx(waited)


def test_nobody_waits_longer_than_others_work(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    window_s = max(r.window_s for r in launch.ranks)
    ranks = tuple(replace(r, waited_s=window_s) for r in launch.ranks)
    taken = share(sample_run, replace(launch, ranks=ranks, foreign_load=0.1))
    assert taken == pytest.approx(0.1 * len(launch.ranks))


def test_a_quota_counts_unless_it_was_planted(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    first, second = launch.ranks
    held = replace(launch, ranks=(replace(first, throttled_s=0.3 * first.window_s), second))
    assert held.throttled == pytest.approx(0.3)
    assert share(sample_run, held) == pytest.approx(0.3)
    assert share(sample_run, held, quota=False) == 0.0


def test_what_is_not_known_is_not_nothing(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    ranks = tuple(replace(r, throttled_s=None) for r in launch.ranks)
    unknown = replace(launch, foreign_load=None, ranks=ranks)
    assert share(sample_run, unknown) is None
    assert biases.lost_to_load([launch, unknown], alone(sample_run, launch), beside=False) is None
    assert biases.lost_to_load([], sample_run, beside=False) is None


@given(shares, shares, shares)
def test_it_is_a_share_and_grows_with_the_load(
    sample_run: RunRecord, less: float, more: float, waited: float
) -> None:
    launch = one(sample_run)
    ranks = tuple(replace(r, waited_s=waited * r.window_s) for r in launch.ranks)
    low, high = (
        share(sample_run, replace(launch, ranks=ranks, foreign_load=foreign))
        for foreign in sorted((less, more))
    )
    assert low is not None and high is not None
    assert 0 <= low <= high <= biases.MOST_LOST


def test_cpu_time_beyond_that_of_the_best_launch_is_pressure(sample_run: RunRecord) -> None:
    """The work of one launch took a tenth of its window longer on its cores than the other's."""
    launch = one(sample_run)
    assert launch.steps is not None
    window_s = max(r.window_s for r in launch.ranks)
    best = replace(
        launch, launch="best", ranks=tuple(replace(r, cpu_s=0.5 * window_s) for r in launch.ranks)
    )
    pressed = replace(launch, ranks=tuple(replace(r, cpu_s=0.6 * window_s) for r in launch.ranks))
    run = replace(sample_run, launches=(best, pressed))
    assert biases.lost_to_load([pressed], run, beside=True) == pytest.approx(0.1)
    assert biases.lost_to_load([pressed], run, beside=False) == 0.0


def test_it_is_told_only_where_it_is_worth_a_word(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    assert biases.sentence([launch], "the baseline") == ""
    busy = replace(launch, foreign_load=0.4)
    assert (
        biases.sentence([busy], "the baseline")
        == "other processes used 40% of the cores of the baseline"
    )


def test_of_a_window_of_less_than_a_tick_nothing_is_told(sample_run: RunRecord) -> None:
    """Eight steps of a tutorial take 5 ms, and busy time is counted in ticks of 10."""
    launch = one(sample_run)
    ranks = tuple(replace(rank, window_s=0.005) for rank in launch.ranks)
    busy = replace(launch, ranks=ranks, foreign_load=0.69)
    assert biases.sentence([busy], "the baseline") == ""
