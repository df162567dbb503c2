"""Delays between readings of the kernel's clock and a rank's clock are no clock difference."""

from __future__ import annotations

import itertools

import pytest

from harness.training.observe.clock import Stamps


def test_the_closest_pair_of_readings_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes run for 0.2 s between the first two readings, as on a busy host."""
    clock = itertools.chain([10.0, 10.2, 10.3, 10.3001], itertools.repeat(11.0))
    stamps = Stamps()
    kernel = iter([100.19, 100.3])
    monkeypatch.setattr(stamps, "now_s", lambda: next(kernel))
    stamp, own = stamps.with_clock(lambda: next(clock))
    assert stamp == 100.3 and own == pytest.approx(10.30005)


def test_on_a_busy_host_the_search_for_close_readings_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = (0.5 * n for n in itertools.count())
    stamp, clock = Stamps().with_clock(lambda: next(readings))
    assert stamp > 0 and clock == 0.25, "the first of equally bad ones"
