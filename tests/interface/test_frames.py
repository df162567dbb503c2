"""Data frames contain the data of records."""

from __future__ import annotations

from pathlib import Path

from harness.interface import frames
from harness.record import RunRecord


def test_frames_contain_the_data_of_the_record(sample: Path, sample_run: RunRecord) -> None:
    launches = frames.launches([sample])
    assert len(launches) == 24
    assert set(launches.purpose) == {"gate", "pilot", "reference", "timed", "profile"}
    steps = frames.steps([sample])
    kept = sum(x.steps.count * len(x.ranks) for x in sample_run.launches if x.steps)
    assert steps.kept.sum() == kept and len(steps) >= kept + 25 * 6
    assert list(frames.points([sample]).world_size) == [1, 2, 2]
    assert set(frames.verdicts([sample]).status) == {"PASS", "RECORDED"}
    budgets = frames.budgets([sample])
    whole = budgets.groupby(["launch", "rank", "step"]).ns.sum()
    assert len(whole) == 4 * 8 and sorted(whole) == sorted(
        ns for x in sample_run.launches if x.budget for r in x.budget.ranks for ns in r.step_ns
    )
