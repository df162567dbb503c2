"""From a question and a rule to the verdict: the one judge of plans, sweeps and trials.

An obstacle ends it; else the judge decides. What it decided stands only on comparable hardware and
without doubt, and a FAIL only if a fresh set confirms it; then a waiver applies. A provisional
bound and simulated hardware beside real devices decide nothing.
"""

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.analysis.judging import fingerprint
from harness.analysis.judging.judge import Judged, estimate, judge, lag1, worst
from harness.analysis.judging.promise import more_pairs
from harness.analysis.judging.question import Conclusion, Question
from harness.analysis.judging.tally import of_stand_in
from harness.cases import BoundSource, Device, Threshold, metrics
from harness.record import ASIDE_SINCE, HALVES_SINCE, Reason, RunRecord, Status, Verdict


def conclude(question: Question, rule: Threshold | None, run: RunRecord) -> Verdict:
    """The verdict on a question under one rule, or none."""
    form = metrics.metric(question.metric).form
    judged: Judged | None = None
    if question.obstacle is not None:
        conclusion = question.obstacle
    else:
        judged = _judged(question, question.first, rule, run)
        conclusion = _survives(question, rule, run, judged)
        if question.place and conclusion.status in (Status.PASS, Status.FAIL):
            detail = f"{conclusion.detail}; {question.place}"
            conclusion = Conclusion(conclusion.status, conclusion.reason, detail)
        if rule is not None and run.complete and conclusion.status is Status.INCONCLUSIVE:
            conclusion = _closed(conclusion, rule, run)
    conclusion = _waived(conclusion, rule, run)
    bare = Verdict(
        contrast=question.name,
        case=question.case,
        case_hash=question.case_hash,
        plan=question.plan,
        metric=question.metric,
        against=question.against,
        rule=rule.name if rule else None,
        bound=rule.bound if rule else "",
        status=conclusion.status,
        reason=conclusion.reason,
        detail=conclusion.detail,
        value=None,
        low=None,
        high=None,
        n=0,
        mde=None,
        pairs=(),
        launches=question.launches,
        waived=conclusion.reason is Reason.WAIVED,
    )
    bare = replace(bare, simulated=_is_aside(run, bare))
    if judged is None:
        return bare
    e = judged.estimate
    interval = _interval(question, rule, run, judged)
    return replace(
        bare,
        value=e.value,
        low=interval.low,
        high=interval.high,
        widened=interval.widened,
        n=e.n,
        sd=e.sd,
        mde=judged.mde,
        pairs=question.first,
        again=question.again,
        evidence=judged.evidence,
        p95=estimate(question.p95, form).value if question.p95 else None,
        worst=worst(question.first, rule, form),
        lag1=lag1(question.first),
        more=more_pairs(question, rule, conclusion.reason),
        doubt=question.doubt.detail if question.doubt is not None else question.unquiet,
    )


class _Interval(NamedTuple):
    """An interval, and in one word what has widened it (empty: nothing)."""

    low: float | None
    high: float | None
    widened: str = ""


#: The word for each reason that widens an interval.
_WIDENED = {
    Reason.NOISY_HOST: "load",
    Reason.NEIGHBOURS: "neighbours",
    Reason.NOT_STEADY: "drift",
}


def _interval(
    question: Question, rule: Threshold | None, run: RunRecord, judged: Judged
) -> _Interval:
    """Return the interval that a rule was judged on: that of the pairs, and of the pairs with each
    tilt taken back. No rule was judged on it if there is none.
    """
    estimate = judged.estimate
    measured = _Interval(estimate.low, estimate.high)
    if rule is None or run.schema < ASIDE_SINCE or estimate.low is None or estimate.high is None:
        return measured
    interval = measured
    for tilt in question.tilts:
        shifted = _judged(question, [v * tilt.factor for v in question.first], rule, run).estimate
        assert interval.low is not None and interval.high is not None
        assert shifted.low is not None and shifted.high is not None
        low = min(interval.low, shifted.low)
        high = max(interval.high, shifted.high)
        if (low, high) != interval[:2]:
            interval = _Interval(low, high, interval.widened or _WIDENED[tilt.reason])
    return interval


def _judged(
    question: Question, values: Sequence[float], rule: Threshold | None, run: RunRecord
) -> Judged:
    """The judge's answer on these values of the question's metric. The first look allows for a slow
    half of the launches, as records since ``HALVES_SINCE`` do.
    """
    metric = metrics.metric(question.metric)
    return judge(
        values,
        rule,
        metric.form,
        timed=metric.of_time,
        horizon=question.horizon,
        halves=run.schema >= HALVES_SINCE,
    )


def _survives(
    question: Question, rule: Threshold | None, run: RunRecord, judged: Judged
) -> Conclusion:
    """Puts the judge's answer through every doubt that it must survive, and returns what is left of
    it.
    """
    conclusion = Conclusion(judged.status, judged.reason, judged.detail)
    impossible = _impossible(question, judged)
    if impossible or conclusion.status in (Status.PASS, Status.FAIL):
        doubt = question.doubt or _tilted(question, rule, run, judged)
        if doubt is not None:
            return doubt._replace(detail=f"{_would_be(impossible, conclusion)}, but {doubt.detail}")
    if impossible:
        return Conclusion(Status.ERROR, Reason.IMPLAUSIBLE, impossible)
    if rule is None or conclusion.status not in (Status.PASS, Status.FAIL):
        return conclusion
    if differing := fingerprint.differing(rule.fingerprint, run):
        reason = f"the bound belongs to another setup: {'; '.join(differing)}"
        return Conclusion(Status.RECORDED, Reason.NOT_COMPARABLE, reason)
    if conclusion.status is Status.PASS and question.claimed:
        reason = f"{conclusion.detail}, but {question.claimed}"
        return Conclusion(Status.RECORDED, Reason.PROVISIONAL, reason)
    if conclusion.status is Status.PASS:
        return conclusion
    if _is_provisional(rule, run):
        detail = f"would fail: {conclusion.detail}; a provisional bound decides nothing"
        return Conclusion(Status.RECORDED, Reason.WOULD_FAIL, detail)
    return _confirmed(question, rule, run, judged)


def _would_be(impossible: str, conclusion: Conclusion) -> str:
    """The decision that would have been reached, were there no doubt."""
    if impossible:
        return impossible
    if conclusion.status is Status.PASS:
        return "would pass"
    return f"would fail ({conclusion.detail})"


def _impossible(question: Question, judged: Judged, factor: float = 1.0) -> str:
    """Why a value (times this) cannot be true; empty for one that can."""
    if question.perfect is not None:
        estimate = judged.estimate
        share = (
            (estimate.value if estimate.low is None else estimate.low) * factor / question.perfect
        )
        if share > metrics.IMPLAUSIBLE * question.gain:
            return f"{share:.3g} of linear scaling is impossible: the baseline is wrong"
    return question.impossible


def _tilted(
    question: Question, rule: Threshold | None, run: RunRecord, judged: Judged
) -> Conclusion | None:
    """Which difference between the arms could have made this verdict, if one could."""
    impossible = bool(_impossible(question, judged))
    for tilt in question.tilts:
        other = _judged(question, [v * tilt.factor for v in question.first], rule, run)
        same = bool(_impossible(question, judged, tilt.factor)) if impossible else True
        if other.status is not judged.status or not same:
            points = 100 * abs(other.estimate.value - judged.estimate.value)
            host = "noisy host: " if tilt.reason is Reason.NOISY_HOST else ""
            reason = f"{host}{tilt.why}: up to {points:.1f} points"
            return Conclusion(Status.INCONCLUSIVE, tilt.reason, reason)
    return None


def _confirmed(question: Question, rule: Threshold, run: RunRecord, first: Judged) -> Conclusion:
    """Holds a FAIL against a fresh set of launches: it stays a FAIL or becomes undecided, never a
    PASS.
    """
    status = Status.INCONCLUSIVE
    reason = Reason.UNCONFIRMED
    if question.again:
        second = _judged(question, question.again, rule, run)
        figure = f"{second.estimate.value:.4g} in {second.estimate.n} fresh pairs"
        if second.status is Status.FAIL and second.missed is first.missed:
            status = Status.FAIL
            reason = Reason.NOT_MET
            why = f"confirmed: {figure}"
        else:
            reason = Reason.DISAGREE
            why = f"a fresh set does not confirm the FAIL: {figure}"
    elif run.complete:
        why = "no fresh set of launches has confirmed the FAIL"
    else:
        reason = Reason.INTERRUPTED
        why = "the run stopped before a fresh set of launches"
    return Conclusion(status, reason, f"{first.detail}; {why}")


def _is_aside(run: RunRecord, verdict: Verdict) -> bool:
    """Whether a verdict is on simulated hardware, in a run that asked for devices."""
    asks_for_devices = run.settings.device is not Device.CPU
    return run.schema >= ASIDE_SINCE and asks_for_devices and of_stand_in(run, verdict)


def _closed(open_: Conclusion, rule: Threshold, run: RunRecord) -> Conclusion:
    """Record what a provisional bound has left open at the end of a run.

    Until then it stays open, because more pairs of launches make the figure better.
    """
    if not _is_provisional(rule, run):
        return open_
    detail = f"undecided: {open_.detail}; a provisional bound decides nothing"
    return Conclusion(Status.RECORDED, Reason.PROVISIONAL, detail)


def _is_provisional(rule: Threshold, run: RunRecord) -> bool:
    return rule.source is BoundSource.PROVISIONAL and run.schema >= ASIDE_SINCE


def _waived(conclusion: Conclusion, rule: Threshold | None, run: RunRecord) -> Conclusion:
    """Applies a waiver: an expected FAIL is waived, a PASS is unexpected."""
    today = datetime.date.fromisoformat(run.started_at[:10])
    if rule is None or rule.waiver is None or not rule.waived(today):
        return conclusion
    if conclusion.status is Status.FAIL:
        message = f"{conclusion.detail}; waived until {rule.waiver.expires}: {rule.waiver.reason}"
        return Conclusion(Status.FAIL, Reason.WAIVED, message)
    if conclusion.status is Status.PASS:
        message = (
            f"bound met, but a waiver expects a FAIL ({rule.waiver.reason}): remove the waiver"
        )
        return Conclusion(Status.FAIL, Reason.UNEXPECTED_PASS, message)
    return conclusion
