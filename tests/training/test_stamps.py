"""The kernel's clock beside a rank's: what comes between two readings is no difference of theirs."""

from __future__ import annotations

import itertools

import pytest

from harness.training.observe.clock import Stamps


def test_the_closest_of_some_readings_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others ran for 0.2 s between the first two readings, as on a host with 16 ranks on 2 cores."""
    clock = itertools.chain([10.0, 10.2, 10.3, 10.3001], itertools.repeat(11.0))
    stamps = Stamps()
    kernel = iter([100.19, 100.3])
    monkeypatch.setattr(stamps, "now_s", lambda: next(kernel))
    stamp, own = stamps.with_clock(lambda: next(clock))
    assert stamp == 100.3 and own == pytest.approx(10.30005)


def test_a_host_that_never_rests_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = (0.5 * n for n in itertools.count())
    stamp, clock = Stamps().with_clock(lambda: next(readings))
    assert stamp > 0 and clock == 0.25, "the first of equally bad ones"
