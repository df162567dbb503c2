"""Records of earlier schemas can be read and keep their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.verify import verify
from harness.base.errors import RecordError
from harness.record import Status
from harness.record.store import load
from tests.editing import change


def test_an_older_record_is_read_and_keeps_its_verdicts() -> None:
    """The golden record has schema 1, the oldest."""
    folder = Path(__file__).parents[1] / "golden" / "record-v1"
    run = load(folder)
    assert run.schema == 1 and run.windows == {} and run.admission == ()
    verified = verify(run, folder)
    assert verified.differences == () and verified.num_launches == 24 and verified.num_verdicts == 0
    assert {v.status for v in run.verdicts} == {Status.PASS, Status.RECORDED}
    assert {v.status for v in verdicts(run)} == {Status.PASS, Status.RECORDED}, (
        "judging the record again returns the same statuses"
    )


def test_a_record_of_schema_6_keeps_its_windows(sample: Path) -> None:
    """Schema 6 interpreted calibration launches differently, so its windows are taken as recorded."""
    run = load(sample)
    assert run.schema == 6 and any(w.cut > 30 for ws in run.windows.values() for w in ws.values())
    assert verify(run, sample).differences == ()


@pytest.mark.parametrize(
    "broken",
    [
        {"settings": None},
        {"fabric": [{}]},
        {"settings": {"budget_s": "5 m"}},
        {"recoveries": [7]},
    ],
)
def test_a_broken_older_record_is_one_clear_error(copy: Path, broken: dict[str, Any]) -> None:
    change(copy, lambda doc: doc.update(schema=4, **broken))
    with pytest.raises(RecordError):
        load(copy)
