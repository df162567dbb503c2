"""The time of a compressor is measured by the clock of the device that computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.training.observe import laps


class Queued:
    """An event of a queue in which each piece of work takes 2 ms."""

    now = 0.0

    def record(self) -> None:
        Queued.now += 1.0
        self.at = Queued.now

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, other: Queued) -> float:
        return 2.0 * (other.at - self.at)


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    yield
    laps._STEPS.clear()
    laps._MARKED.clear()


def test_laps_on_a_device_are_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laps, "event", lambda device: Queued())
    for _ in range(3):
        laps.begin(torch.device("cuda", 0))
        with laps.lap("encode"):
            pass
        with laps.lap("encode"), laps.lap("decode"):
            pass
    assert laps.medians() == {"decode": 0.002, "encode": 0.002 + 0.006}


def test_laps_on_a_cpu_are_timed_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(laps.time, "perf_counter", lambda: float(next(ticks)))
    laps.begin(torch.device("cpu"))
    with laps.lap("encode"):
        pass
    assert laps.medians() == {"encode": 1.0}
