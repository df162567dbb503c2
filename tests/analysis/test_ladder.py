"""Rows of reports with figures that only devices provide."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from harness.analysis.ladder import arm_row
from harness.host.nvml import GpuWindow
from harness.interface.report.tables import scaling_table
from harness.record import RunRecord


def on_gpu(run: RunRecord, *joules: float | None) -> RunRecord:
    """Return the run as if its devices had used this energy (J) in every launch."""
    gpus = tuple(
        GpuWindow(
            index=i, name="NVIDIA H200", sm_clock_mhz=None, power_w=None, temp_c=None, throttle=(),
            energy_j=taken,
        )
        for i, taken in enumerate(joules)
    )  # fmt: skip
    return replace(run, launches=tuple(replace(x, gpus=gpus) for x in run.launches))


def test_energy_per_sample_sums_over_all_devices(sample_run: RunRecord) -> None:
    plan = sample_run.plans[0]
    arm = plan.arm("@2")
    row = arm_row(on_gpu(sample_run, 100.0, 300.0), plan, arm)
    assert row.energy_j == pytest.approx(fmean(400 / x.consumed for x in row.launches))
    assert arm_row(on_gpu(sample_run, 100.0, None), plan, arm).energy_j is None, (
        "the energy of one device is unknown"
    )
    assert arm_row(sample_run, plan, arm).energy_j is None


def test_the_table_shows_energy_only_if_it_was_measured(sample_run: RunRecord) -> None:
    assert "J/sample" not in scaling_table(sample_run, 300)[0]
    assert "J/sample" in scaling_table(on_gpu(sample_run, 100.0), 300)[0]
