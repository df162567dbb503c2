"""The exit status of verdicts: the worst counts, and what judges nothing passes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harness.base.errors import Exit
from harness.record import Reason, RunRecord, Status
from harness.record.outcome import SEVERITY, exit_status

statuses = st.lists(st.sampled_from(Status), max_size=6)


def test_every_status_has_its_place() -> None:
    assert sorted(SEVERITY) == sorted(Status)


@given(statuses)
def test_only_a_pass_without_anything_worse_ends_with_0(them: list[Status]) -> None:
    worse = {Status.ERROR, Status.FAIL, Status.INCONCLUSIVE}
    passed = Status.PASS in them and worse.isdisjoint(them)
    assert (exit_status(them) == Exit.PASSED == 0) is passed


@given(statuses, st.sampled_from([Status.ERROR, Status.FAIL, Status.INCONCLUSIVE]))
def test_nothing_makes_a_bad_end_good(them: list[Status], bad: Status) -> None:
    assert exit_status([*them, bad]) != Exit.PASSED
    assert exit_status([*them, bad]) in (Exit.ERROR, Exit.FAILED, Exit.INCONCLUSIVE)


@given(statuses)
def test_what_is_let_through_does_not_pass(them: list[Status]) -> None:
    """INCONCLUSIVE ones that may not fail a run: without a PASS nothing was judged."""
    kept = [x for x in them if x is not Status.INCONCLUSIVE]
    assert exit_status(them, inconclusive_fails=False) == exit_status(kept)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"status": Status.FAIL, "waived": True}, Status.RECORDED),
        ({"status": Status.PASS, "reason": Reason.CAUGHT}, Status.RECORDED),
        ({"status": Status.INCONCLUSIVE, "rule": None}, Status.SKIP),
        ({"status": Status.ERROR, "waived": True}, Status.ERROR),
        ({"status": Status.INCONCLUSIVE, "waived": True, "rule": "r"}, Status.INCONCLUSIVE),
    ],
)
def test_what_a_verdict_counts_as(
    sample_run: RunRecord, fields: dict[str, object], counts: Status
) -> None:
    verdict = next(v for v in sample_run.verdicts if v.rule)
    assert replace(verdict, **fields).counts is counts  # type: ignore[arg-type]
