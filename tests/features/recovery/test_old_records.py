"""Trials of earlier schemas are read, and judged as they were."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.verify import verify
from harness.record import Status
from harness.record.store import load


def test_verdicts_of_sweeps_and_trials_of_schema_4_are_judged_alike() -> None:
    """8 sweeps, 16 sweeps that fail twice, 8 trials: as the program of its day wrote them."""
    folder = Path(__file__).parents[2] / "golden" / "record-v4"
    run = load(folder)
    verified = verify(run, folder)
    assert verified.differences == () and verified.num_verdicts == 0, (
        "judged by the rules of its day"
    )
    assert [v.status for v in verdicts(run)] == [Status.PASS, Status.FAIL, Status.PASS]
