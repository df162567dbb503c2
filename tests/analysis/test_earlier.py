"""Runs that were repeated until they passed are reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.earlier import sentences
from harness.base.documents import to_doc
from harness.record import RunRecord, Status

THIS = "2026-11-22T14:54:51+00:00"
CASE = "ddp/decoder-nano/weak@2cpu"


def write(run: RunRecord, folder: Path, at: str, status: Status, bound: str = ">=0.55") -> None:
    verdicts = tuple(replace(v, status=status, bound=bound) for v in run.verdicts if v.rule)
    folder.mkdir()
    doc = to_doc(replace(run, started_at=at, verdicts=verdicts))
    (folder / "record.json").write_text(json.dumps(doc))


@pytest.mark.parametrize(
    ("earlier", "says"),
    [
        ([], ""),
        ([Status.PASS, Status.PASS], ""),
        ([Status.FAIL], f"run 2 of {CASE} in this folder: 0 of the 1 before PASS"),
        (
            [Status.PASS, Status.INCONCLUSIVE, Status.ERROR],
            f"run 4 of {CASE} in this folder: 1 of the 3 before PASS",
        ),
    ],
)
def test_earlier_runs_that_did_not_pass_are_counted(
    sample_run: RunRecord, tmp_path: Path, earlier: list[Status], says: str
) -> None:
    this = tmp_path / "runs" / "this"
    this.parent.mkdir()
    write(sample_run, this, THIS, Status.PASS)
    for number, status in enumerate(earlier):
        write(sample_run, this.parent / f"run{number}", f"2026-11-2{number}T00:00:00+00:00", status)
    write(sample_run, this.parent / "later", "2026-12-01T00:00:00+00:00", Status.FAIL)
    write(sample_run, this.parent / "stricter", "2026-11-01T00:00:00+00:00", Status.FAIL, ">=0.9")
    (this.parent / "torn").mkdir()
    (this.parent / "torn" / "record.json").write_text("{")
    run = replace(sample_run, started_at=THIS)
    assert list(sentences(run, this)) == [says] * bool(says)
