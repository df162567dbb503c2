"""Notices report leaks, different losses and throttled devices in a sentence, without a verdict."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.analysis.judging.notices import sentences
from harness.analysis.judging.verdicts import verdicts
from harness.base.documents import from_doc, to_doc
from harness.host.nvml import GpuWindow
from harness.record import LaunchRecord, RunRecord, Status
from tests.editing import even, judged, timed


def test_an_injected_leak_is_reported(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    assert not any("memory grows" in f for f in sentences(sample_run))
    for x in timed(doc, "@2"):
        x["growth"] = {"rank": 1, "steady": 0.9, "slope": 2e5, "low": 1.5e5, "high": 2.5e5}
    (finding,) = [f for f in sentences(from_doc(RunRecord, doc)) if "memory grows" in f]
    assert "grows by 200 kB in each step" in finding

    def bounded(doc: Any) -> None:
        for x in timed(doc, "@2"):
            x["growth"] = {"rank": 1, "steady": 0.9, "slope": 2e5, "low": 1.5e5, "high": 2.5e5}
        doc["thresholds"].append(
            {"name": "leak", "case": "ddp/*", "metric": "memory_growth", "unit": "B/step",
             "source": "requirement", "world": [2], "at_most": 65536}
        )  # fmt: skip

    leaks = judged(sample_run, bounded)["memory_growth@2"]
    assert leaks.status in (Status.FAIL, Status.INCONCLUSIVE) and leaks.value == 2e5


def test_different_losses_of_repeated_launches_are_reported(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    timed(doc, "@2")[0]["losses"] = "0" * 16
    assert any("not reproducible" in f for f in sentences(from_doc(RunRecord, doc)))


def test_throttled_and_lost_devices_are_reported(sample_run: RunRecord) -> None:
    window = GpuWindow(
        index=5, name="NVIDIA H200", sm_clock_mhz=(1410, 1980), power_w=None, temp_c=None,
        throttle=("sw_power_cap",), lost=True,
    )  # fmt: skip
    slowed = [dataclasses.replace(x, gpus=(window,)) for x in sample_run.launches[:3]]
    run = dataclasses.replace(sample_run, launches=tuple(slowed))
    assert "GPU 5 (NVIDIA H200): sw_power_cap, lost in 3 launches" in sentences(run)


@pytest.mark.parametrize(("efficiency", "told"), [(0.9, False), (1.03, False), (1.3, True)])
def test_superlinear_scaling_is_reported(
    sample_run: RunRecord, efficiency: float, *, told: bool
) -> None:
    """Its baseline may be slow for an unrelated reason."""
    doc = to_doc(sample_run)
    even(doc, efficiency)
    run = from_doc(RunRecord, doc)
    measured = dataclasses.replace(run, verdicts=tuple(verdicts(run)))
    assert any("more than linear" in finding for finding in sentences(measured)) is told


def test_lower_clocks_are_reported_as_part_of_the_loss(sample_run: RunRecord) -> None:
    """Eight cards share a chassis whose power suffices for only one card at full clocks."""

    def clocked(launch: LaunchRecord) -> LaunchRecord:
        mhz = 1980.0 if launch.arm == "plain" else 1782.0
        window = GpuWindow(
            index=0, name="NVIDIA H100", sm_clock_mhz=None, power_w=None, temp_c=None, throttle=(),
            mean_clock_mhz=mhz,
        )  # fmt: skip
        return dataclasses.replace(launch, gpus=(window,))

    run = dataclasses.replace(sample_run, launches=tuple(map(clocked, sample_run.launches)))
    told = [finding for finding in sentences(run) if "MHz" in finding]
    assert any(
        "at 1782 MHz, and its baseline's GPUs at 1980 MHz; lower clocks reduced the speed by 10.0%"
        in f
        for f in told
    )
