"""Caveats between the judge's decision and the verdict can only prevent a PASS, never cause one."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from harness.analysis.judging.judge import judge_values
from harness.analysis.judging.question import (
    Caveat,
    Question,
    Severity,
    bias,
    blocker,
    undecided,
)
from harness.analysis.judging.verdicts import conclude
from harness.cases import BoundSource, Form, Threshold
from harness.cases.rules import Waiver
from harness.record import HALVES_SINCE, Reason, RunRecord, Status
from harness.record.outcome import exit_status

RULE = Threshold(
    name="a", case="*", metric="throughput_ratio", at_least=0.8, source=BoundSource.REQUIREMENT
)
GOOD = (0.95, 0.96, 0.95, 0.96)
BAD = (0.60, 0.61, 0.60, 0.61)
OBSTACLE = blocker(Status.ERROR, Reason.INCORRECT, "it computes something else")
DOUBT = undecided(Reason.NOISY_HOST, "too hot")
CLAIM = Caveat(code=Reason.PROVISIONAL, severity=Severity.CLAIMS, sentence="nobody counted it")
IMPOSSIBLE = Caveat(
    code=Reason.IMPLAUSIBLE, severity=Severity.IMPOSSIBLE, sentence="no link is that fast"
)


def question(first: tuple[float, ...], **more: object) -> Question:
    return replace(
        Question(name="a", case="a", metric=RULE.metric, against="other", first=first),
        **more,  # type: ignore[arg-type]
    )


def waived(run: RunRecord, days: int) -> Threshold:
    """Return the rule with a waiver that expires ``days`` days after the run."""
    expires = datetime.date.fromisoformat(run.started_at[:10]) + datetime.timedelta(days=days)
    return replace(RULE, waiver=Waiver(reason="new switch", expires=str(expires)))


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        (question(GOOD), Status.PASS, Reason.MET),
        (question(GOOD, caveats=(OBSTACLE,)), Status.ERROR, Reason.INCORRECT),
        (question(GOOD, caveats=(DOUBT,)), Status.INCONCLUSIVE, Reason.NOISY_HOST),
        (question(GOOD, caveats=(CLAIM,)), Status.RECORDED, Reason.PROVISIONAL),
        (question(GOOD, caveats=(IMPOSSIBLE,)), Status.ERROR, Reason.IMPLAUSIBLE),
        (question(GOOD, perfect=0.5), Status.ERROR, Reason.IMPLAUSIBLE),
        (question(GOOD, caveats=(bias(0.6, "load"),)), Status.INCONCLUSIVE, None),
        (question(GOOD, caveats=(bias(0.99, "load"),)), Status.PASS, Reason.MET),
        (question(BAD), Status.INCONCLUSIVE, Reason.UNCONFIRMED),
        (question(BAD, again=BAD), Status.FAIL, Reason.NOT_MET),
        (question(BAD, again=GOOD), Status.INCONCLUSIVE, Reason.DISAGREE),
        (question(BAD, again=BAD, caveats=(DOUBT,)), Status.INCONCLUSIVE, Reason.NOISY_HOST),
        (question(BAD, again=BAD, caveats=(CLAIM,)), Status.FAIL, Reason.NOT_MET),
    ],
)
def test_caveats_change_the_status_of_a_decision(
    sample_run: RunRecord, asked: Question, status: Status, reason: Reason | None
) -> None:
    verdict = conclude(asked, RULE, sample_run)
    assert verdict.status is status
    assert reason is None or verdict.reason is reason


def test_a_failure_in_an_interrupted_run_is_inconclusive(sample_run: RunRecord) -> None:
    verdict = conclude(question(BAD), RULE, replace(sample_run, complete=False))
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.INTERRUPTED)


def test_a_waiver_tolerates_a_fail_until_it_expires_and_no_pass(sample_run: RunRecord) -> None:
    asked = question(BAD, again=BAD)
    held = conclude(asked, waived(sample_run, 1), sample_run)
    assert (held.status, held.counts, held.waived) == (Status.FAIL, Status.RECORDED, True)
    late = conclude(asked, waived(sample_run, -1), sample_run)
    assert (late.status, late.counts, late.waived) == (Status.FAIL, Status.FAIL, False)
    unexpected = conclude(question(GOOD), waived(sample_run, 1), sample_run)
    assert unexpected.counts is Status.FAIL and unexpected.reason is Reason.UNEXPECTED_PASS


values = st.lists(st.floats(0.3, 1.3), min_size=2, max_size=8).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    first=values,
    again=st.one_of(st.just(()), values),
    factor=st.floats(0.3, 3.0),
    others=st.lists(st.sampled_from([OBSTACLE, DOUBT, CLAIM]), unique=True, max_size=2),
    days=st.sampled_from([None, -1, 1]),
)
def test_no_combination_of_caveats_creates_a_pass(
    sample_run: RunRecord,
    first: tuple[float, ...],
    again: tuple[float, ...],
    factor: float,
    others: list[Caveat],
    days: int | None,
) -> None:
    asked = question(first, again=again, caveats=(bias(factor, "load"), *others))
    rule = RULE if days is None else waived(sample_run, days)
    alone = judge_values(first, RULE, Form.RATIO)
    # Records of older schemas were judged without the allowance for an unseen slow half of
    # launches.
    verdict = conclude(asked, rule, replace(sample_run, schema=HALVES_SINCE))
    if verdict.status is Status.PASS:
        assert alone.status is Status.PASS
        assert not others and days != 1
        assert verdict.low is not None and verdict.low > 0.8
    if verdict.status is Status.FAIL and verdict.reason is Reason.NOT_MET:
        assert alone.status is Status.FAIL and again
    assert verdict.value is None or math.isfinite(verdict.value)


def test_the_worst_verdict_determines_the_exit_status() -> None:
    every = [Status.PASS, Status.SKIP, Status.RECORDED, Status.INCONCLUSIVE, Status.FAIL]
    assert [exit_status(every[:n]) for n in range(1, 6)] == [0, 0, 0, 10, 1]
    assert exit_status([*every, Status.ERROR]) == 11
    assert exit_status([Status.RECORDED, Status.SKIP]) == exit_status([]) == 5
    assert exit_status([Status.PASS, Status.INCONCLUSIVE], inconclusive_fails=False) == 0
