"""Load: the share of a launch's time that other processes may have taken, on windows with known
shares.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harness.analysis.judging import biases
from harness.record import LaunchRecord, Purpose, RunRecord

shares = st.floats(0, 1.5)


def one(run: RunRecord) -> LaunchRecord:
    """Return a timed launch of two ranks without background load."""
    launch = next(x for x in run.launches if x.purpose is Purpose.TIMED and len(x.ranks) == 2)
    quiet = tuple(
        replace(r, waited_s=0.0, throttled_s=0.0, planted_s=None, affinity=(i,))
        for i, r in enumerate(launch.ranks)
    )
    return replace(launch, ranks=quiet, foreign_load=0.0)


def alone(run: RunRecord, launch: LaunchRecord) -> RunRecord:
    """Return a record with only this launch, which makes it the best one of its case."""
    return replace(run, launches=(launch,))


def share(run: RunRecord, launch: LaunchRecord, **more: bool) -> float | None:
    return biases.lost_to_load([launch], alone(run, launch), beside=False, **more)


def test_a_quiet_launch_lost_nothing(sample_run: RunRecord) -> None:
    assert share(sample_run, one(sample_run)) == 0.0


@pytest.mark.parametrize("waited", [0.05, 0.2, 0.4])
def test_time_spent_waiting_for_a_busy_core_is_lost(sample_run: RunRecord, waited: float) -> None:
    """One of two ranks waits for a share of its window while other processes keep half of its core
    busy.
    """
    launch = one(sample_run)
    window_s = max(r.window_s for r in launch.ranks)
    first, second = launch.ranks
    ranks = (replace(first, waited_s=waited * window_s), second)
    taken = share(sample_run, replace(launch, ranks=ranks, foreign_load=0.5))
    assert taken == pytest.approx(waited)


def test_the_loss_is_limited_by_the_load_of_other_processes(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    window_s = max(r.window_s for r in launch.ranks)
    ranks = tuple(replace(r, waited_s=window_s) for r in launch.ranks)
    taken = share(sample_run, replace(launch, ranks=ranks, foreign_load=0.1))
    assert taken == pytest.approx(0.1 * len(launch.ranks))


def test_a_cpu_quota_counts_unless_it_was_injected(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    first, second = launch.ranks
    held = replace(launch, ranks=(replace(first, throttled_s=0.3 * first.window_s), second))
    assert held.throttled == pytest.approx(0.3)
    assert share(sample_run, held) == pytest.approx(0.3)
    assert share(sample_run, held, quota=False) == 0.0


def test_an_unknown_load_is_not_counted_as_zero(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    ranks = tuple(replace(r, throttled_s=None) for r in launch.ranks)
    unknown = replace(launch, foreign_load=None, ranks=ranks)
    assert share(sample_run, unknown) is None
    assert biases.lost_to_load([launch, unknown], alone(sample_run, launch), beside=False) is None
    assert biases.lost_to_load([], sample_run, beside=False) is None


@given(shares, shares, shares)
def test_the_lost_share_grows_with_the_load_and_is_bounded(
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


def test_more_cpu_time_than_the_best_launch_counts_as_lost(sample_run: RunRecord) -> None:
    """One launch needed a tenth of its window more CPU time for the same work than the other."""
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


def test_load_is_reported_only_if_it_is_relevant(sample_run: RunRecord) -> None:
    launch = one(sample_run)
    assert biases.sentence([launch], "the baseline") == ""
    busy = replace(launch, foreign_load=0.4)
    assert (
        biases.sentence([busy], "the baseline")
        == "other processes used 40% of the cores of the baseline"
    )


def test_load_of_a_window_shorter_than_a_clock_tick_is_not_reported(sample_run: RunRecord) -> None:
    """Eight steps of a tutorial take 5 ms, but the kernel counts busy time in ticks of 10 ms."""
    launch = one(sample_run)
    ranks = tuple(replace(rank, window_s=0.005) for rank in launch.ranks)
    busy = replace(launch, ranks=ranks, foreign_load=0.69)
    assert biases.sentence([busy], "the baseline") == ""
