"""A result that rests only on a statement in a user's file is RECORDED with the reason, never a
PASS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.base.documents import to_doc
from harness.record import RunRecord, Status
from harness.record.launch import Cause
from tests.editing import bound, even, judged, timed

SUBJECT = "efficiency@2/plain"


def of_subject(doc: Any) -> Any:
    """Return the subject's description, marked as using a user's strategy."""
    described = doc["described"][timed(doc, "@2")[0]["case"]]
    described["theirs"] = ["strategies"]
    return described


def nothing(doc: Any) -> None:
    of_subject(doc)


def a_reference_without_memory(doc: Any) -> None:
    cause = Cause(rank=0, kind="memory", message="MemoryError", phase="setup", step=0, sure=True)
    key = of_subject(doc)["reference"]["key"]
    for launch in doc["launches"]:
        if doc["described"][launch["case"]]["reference"]["key"] == key:
            if launch["purpose"] == "reference":
                launch["cause"] = to_doc(cause)
            launch["compared"] = 0


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (nothing, ""),
        (a_reference_without_memory, "ran out of memory"),
    ],
)
def test_a_users_file_vouches_for_nothing_but_itself(
    sample_run: RunRecord, edit: Callable[[Any], None], reason: str
) -> None:
    def edited(doc: Any) -> None:
        even(doc, 0.95)
        bound(doc, at_least=0.5)
        edit(doc)

    verdict = judged(sample_run, edited)[SUBJECT]
    assert verdict.status is (Status.RECORDED if reason else Status.PASS), verdict.detail
    assert reason in verdict.detail
