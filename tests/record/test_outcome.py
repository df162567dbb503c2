"""The exit status follows the worst verdict, and a run without a PASS does not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harness.base.errors import Exit
from harness.interface.report.headline import headline
from harness.record import Reason, RunRecord, Status
from harness.record.outcome import SEVERITY, exit_status

statuses = st.lists(st.sampled_from(Status), max_size=6)


def test_every_status_has_a_severity() -> None:
    assert sorted(SEVERITY) == sorted(Status)


@given(statuses)
def test_exit_status_is_0_only_for_a_pass_without_worse_verdicts(them: list[Status]) -> None:
    worse = {Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_COMPARABLE}
    passed = Status.PASS in them and worse.isdisjoint(them)
    assert (exit_status(them) == Exit.PASSED == 0) is passed


@given(statuses, st.sampled_from([Status.ERROR, Status.FAIL, Status.INCONCLUSIVE]))
def test_no_verdict_hides_a_worse_one(them: list[Status], bad: Status) -> None:
    assert exit_status([*them, bad]) != Exit.PASSED
    assert exit_status([*them, bad]) in (Exit.ERROR, Exit.FAILED, Exit.INCONCLUSIVE)


@given(statuses)
def test_what_cannot_be_compared_has_its_own_exit_status(them: list[Status]) -> None:
    worse = {Status.ERROR, Status.FAIL, Status.INCONCLUSIVE}
    alone = worse.isdisjoint(them)
    assert (exit_status([*them, Status.NOT_COMPARABLE]) == Exit.NOT_COMPARABLE == 12) is alone


@given(statuses)
def test_tolerated_inconclusive_verdicts_do_not_count_as_a_pass(them: list[Status]) -> None:
    """If INCONCLUSIVE may not fail a run, it is ignored; without a PASS, the run still does not
    pass.
    """
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
def test_waivers_and_missing_rules_change_what_a_verdict_counts_as(
    sample_run: RunRecord, fields: dict[str, object], counts: Status
) -> None:
    verdict = next(v for v in sample_run.verdicts if v.rule)
    assert replace(verdict, **fields).counts is counts  # type: ignore[arg-type]


def test_a_threshold_that_judges_nothing_is_no_success(sample_run: RunRecord) -> None:
    """A rank of the baseline was killed for memory, so its case does not fit."""
    skipped = [
        replace(v, status=Status.SKIP, reason=Reason.DOES_NOT_FIT, detail="it does not fit")
        if v.rule
        else v
        for v in sample_run.verdicts
    ]
    settings = replace(sample_run.settings, require_verdict=False)
    run = replace(sample_run, verdicts=tuple(skipped), settings=settings)
    assert any(v.status is Status.RECORDED for v in run.verdicts)
    assert run.exit_status is Exit.NOTHING_JUDGED
    assert headline(run).startswith("SKIP: 1 threshold judged nothing: it does not fit")
