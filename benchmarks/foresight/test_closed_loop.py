"""Synthetic worlds: intervals from N <= 8 cover their large sizes as often as stated."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.foresight.closed_loop import TRUTHS, LoopTrial, knees, lines, trials


@pytest.fixture(scope="module")
def found() -> list[LoopTrial]:
    return trials(120, seed=1)


@pytest.mark.full
def test_intervals_cover_the_truth_as_often_as_stated(found: list[LoopTrial]) -> None:
    """The stated coverage is 80 %; with 120 worlds its standard error is 4 %."""
    covered = np.array([t.covered for t in found]).mean(axis=0)
    assert len(covered) == len(TRUTHS)
    assert (np.abs(covered - 0.8) < 0.13).all(), covered


def test_most_knees_are_flagged_and_most_others_are_not(found: list[LoopTrial]) -> None:
    knees = [t.flagged for t in found if t.knee]
    others = [t.flagged for t in found if not t.knee]
    assert len(knees) > 10
    assert np.mean(knees) > 0.75
    assert np.mean(others) < 0.35


def test_the_advised_size_narrows_more_than_doubling() -> None:
    made = trials(40, seed=2, advised=True)
    after = np.array([[t.after_advice, t.after_doubling] for t in made], float)
    assert after[:, 0].mean() < after[:, 1].mean() < np.mean([t.width for t in made])


def test_the_results_are_printed() -> None:
    shown = lines(trials(3, seed=3, advised=True))
    assert shown[0].startswith("3 worlds") and len(shown) == len(TRUTHS) + 3


def test_the_advised_size_shows_a_knee() -> None:
    """Worlds with injected knees are simulated event by event; twice the largest size
    misses most.
    """
    shown = knees(12, seed=4)
    assert shown.worlds == 12
    assert shown.by_knee >= 10 and shown.by_knee > 2 * shown.by_doubling
    assert shown.false <= 4, "an 80 % interval has a tenth above it"


@pytest.mark.full
def test_knees_are_shown_in_nine_of_ten_worlds() -> None:
    shown = knees(100)
    assert shown.by_knee >= 90 and shown.false <= 25, shown
