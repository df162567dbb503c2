"""A report passes only if every requirement passes, whatever statuses there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.features.acceptance.handover import overall
from harness.record import Status


@pytest.mark.parametrize("other", [None, *(s for s in Status if s is not Status.PASS)])
def test_one_requirement_without_a_pass_keeps_a_report_from_passing(other: Status | None) -> None:
    requirements: Any = [
        SimpleNamespace(status=status, waived=False) for status in (Status.PASS, other)
    ]
    assert overall(requirements, [], []) is not Status.PASS
    assert overall(requirements[:1], [], []) is Status.PASS
