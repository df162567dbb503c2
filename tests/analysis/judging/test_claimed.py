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


def probed(doc: Any, steps_s: list[float], paused_s: list[float]) -> None:
    of_subject(doc)["theirs"] = ["models"]
    for launch in doc["launches"]:
        for rank in launch["ranks"] if launch["purpose"] in ("timed", "pilot") else ():
            rank["probe"] = {"flops": 1e6, "steps_s": steps_s, "paused_s": paused_s}


def a_schedule(doc: Any) -> None:
    probed(doc, [0.025, 0.025, 0.025], [0.012, 0.003, 0.003])


def noise(doc: Any) -> None:
    """Under background load, a step after a pause may be faster than the one before it."""
    probed(doc, [0.025, 0.004, 0.012], [0.003, 0.004, 0.030])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (nothing, ""),
        (noise, ""),
        (a_schedule, "keeps a schedule"),
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
