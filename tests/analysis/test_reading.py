"""Reading runs: a killed run is judged, and the starts of one training are combined into one run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import reading
from harness.base.errors import SpecError
from harness.record import RunRecord
from harness.record.store import load
from tests.editing import change


def killed(doc: dict[str, object]) -> None:
    doc.update(complete=False, verdicts=[])


def test_a_killed_run_has_the_verdicts_of_its_launches(copy: Path) -> None:
    """They equal the verdicts of the complete run, except for effects of being incomplete."""
    whole = {v.contrast: v.value for v in load(copy).verdicts}
    change(copy, killed)
    assert not load(copy).verdicts
    judged = {v.contrast: v.value for v in reading.load(copy).verdicts}
    assert judged == whole


def test_a_folder_of_runs_is_distinguished_from_a_run(copy: Path, tmp_path: Path) -> None:
    below = tmp_path / "results" / "runs" / "2026-11" / "a"
    below.parent.mkdir(parents=True)
    shutil.copytree(copy, below)
    assert reading.runs_in(copy) == [copy]
    assert reading.runs_in(copy / "record.json") == [copy / "record.json"]
    assert reading.runs_in(tmp_path / "results") == [below]
    assert reading.runs_in(tmp_path / "nothing") == [tmp_path / "nothing"]


def recorded(run: RunRecord) -> RunRecord:
    """Return the run as the library records it from inside a training script."""
    launches = tuple(replace(x, engine=reading.LIBRARY) for x in run.launches)
    return replace(run, launches=launches)


def test_starts_of_one_training_are_combined_into_one_run(sample_run: RunRecord) -> None:
    start = recorded(sample_run)
    half = len(start.launches) // 2
    starts = [
        replace(start, run=name, launches=launches)
        for name, launches in (("a", start.launches[:half]), ("b", start.launches[half:]))
    ]
    pooled = reading.pooled(starts)
    assert pooled.launches == start.launches and pooled.plans == start.plans
    assert not pooled.verdicts, "the combined run must be judged again"
    assert reading.pooled([start]) is start


def test_other_runs_are_never_pooled(sample_run: RunRecord) -> None:
    with pytest.raises(SpecError, match="not a start that a training recorded"):
        reading.pooled([sample_run, sample_run])


@pytest.mark.parametrize("other", ["machine", "software"])
def test_starts_with_different_machines_or_software_are_not_pooled(
    sample_run: RunRecord, other: str
) -> None:
    start = recorded(sample_run)
    unlike = (
        replace(start, machine=replace(start.machine, power_limit_w=1))
        if other == "machine"
        else replace(start, software={**start.software, "torch": "1.0"})
    )
    with pytest.raises(SpecError, match="cannot be merged"):
        reading.pooled([start, unlike])
