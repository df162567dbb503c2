"""Trials of earlier schemas are read and keep their verdicts."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.verify import verify
from harness.record import Status
from harness.record.store import load


def test_sweeps_and_trials_of_schema_4_keep_their_verdicts() -> None:
    """The record has 8 sweeps, 16 sweeps that fail twice, and 8 trials, as the program of schema 4
    wrote them.
    """
    folder = Path(__file__).parents[2] / "golden" / "record-v4"
    run = load(folder)
    verified = verify(run, folder)
    assert verified.differences == () and verified.num_verdicts == 0, (
        "verdicts of an older schema are not recomputed"
    )
    assert [v.status for v in verdicts(run)] == [Status.PASS, Status.FAIL, Status.PASS]
