"""The verdicts of a run, computed from its record without torch or the machine of the run."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from harness.analysis.judging import biases, fingerprint
from harness.analysis.judging.attained import bus_bps
from harness.analysis.judging.biases import ADAMW_BYTES, MEMORY_BYTES
from harness.analysis.judging.blockers import find_blocker, unmeasured
from harness.analysis.judging.caveats import claimed, find_doubt, unquiet
from harness.analysis.judging.contrast_data import ContrastData, judged_of, pairs, timed
from harness.analysis.judging.factors import NEEDED, factor
from harness.analysis.judging.judge import Judged, estimate, judge_values, lag1, worst
from harness.analysis.judging.points import mfu, roofline_mfu
from harness.analysis.judging.promise import more_pairs
from harness.analysis.judging.question import Caveat, Conclusion, Question, Severity, blocker
from harness.analysis.judging.series import series
from harness.cases import (
    BoundSource,
    CaseSpec,
    Contrast,
    Device,
    Form,
    Plan,
    StandIn,
    Statistic,
    Threshold,
    metrics,
)
from harness.host.machine import Machine
from harness.record import (
    ASIDE_SINCE,
    CORRELATED_SINCE,
    HALVES_SINCE,
    Purpose,
    Reason,
    RunRecord,
    Status,
    Verdict,
)


def conclude(question: Question, rule: Threshold | None, run: RunRecord) -> Verdict:
    """Return the verdict on a question under one threshold, or without one."""
    form = metrics.metric(question.metric).form
    judged: Judged | None = None
    blocks = question.caveat(Severity.BLOCKS)
    if blocks is not None:
        conclusion = _by(blocks)
    else:
        judged = _judged(question, question.first, rule, run)
        conclusion = _survives(question, rule, run, judged)
        limits = question.caveat(Severity.LIMITS)
        if limits is not None and conclusion.status in (Status.PASS, Status.FAIL):
            detail = f"{conclusion.detail}; {limits.sentence}"
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
        doubt=_doubt(question),
    )


def _by(caveat: Caveat) -> Conclusion:
    """Return the conclusion that a caveat alone determines."""
    return Conclusion(caveat.status, caveat.reason, caveat.sentence)


def _doubt(question: Question) -> str:
    """Return the caveat that readers of a value without a threshold need, or an empty string."""
    caveat = question.caveat(Severity.UNDECIDES) or question.caveat(Severity.NOTES)
    return "" if caveat is None else caveat.sentence


class _Interval(NamedTuple):
    """An interval, with one word for the cause that widened it (empty if nothing did)."""

    low: float | None
    high: float | None
    widened: str = ""


#: The word in ``Verdict.widened`` for each reason that widens an interval.
_WIDENED = {
    Reason.NOISY_HOST: "load",
    Reason.NEIGHBOURS: "neighbours",
    Reason.NOT_STEADY: "drift",
}


def _interval(
    question: Question, rule: Threshold | None, run: RunRecord, judged: Judged
) -> _Interval:
    """Return the interval by which a threshold is judged.

    It contains the interval of the measured pairs, and for each bias the interval of the pairs
    corrected by this bias. Without a threshold it is the interval of the measured pairs.
    """
    estimate = judged.estimate
    correlated = "lag-1" if judged.spread > 1 else ""
    measured = _Interval(estimate.low, estimate.high, correlated)
    if rule is None or run.schema < ASIDE_SINCE or estimate.low is None or estimate.high is None:
        return measured
    interval = measured
    for bias in question.caveats_of(Severity.BIASES):
        shifted = _judged(question, [v * bias.shift for v in question.first], rule, run).estimate
        assert interval.low is not None and interval.high is not None
        assert shifted.low is not None and shifted.high is not None
        low = min(interval.low, shifted.low)
        high = max(interval.high, shifted.high)
        if (low, high) != interval[:2]:
            interval = _Interval(low, high, interval.widened or _WIDENED[bias.reason])
    return interval


def _judged(
    question: Question, values: Sequence[float], rule: Threshold | None, run: RunRecord
) -> Judged:
    """Return the judge's answer for these values of the question's metric.

    For records since ``HALVES_SINCE``, the judge allows for a slow half of the launches, and since
    ``CORRELATED_SINCE`` for correlation between pairs.
    """
    metric = metrics.metric(question.metric)
    return judge_values(
        values,
        rule,
        metric.form,
        timed=metric.of_time,
        horizon=question.horizon,
        halves=run.schema >= HALVES_SINCE,
        correlated=run.schema >= CORRELATED_SINCE,
    )


def _survives(
    question: Question, rule: Threshold | None, run: RunRecord, judged: Judged
) -> Conclusion:
    """Return the conclusion that follows from the judge's answer and the question's caveats."""
    conclusion = Conclusion(judged.status, judged.reason, judged.detail)
    impossible = _impossible(question, judged)
    if impossible or conclusion.status in (Status.PASS, Status.FAIL):
        undecides = question.caveat(Severity.UNDECIDES) or _worsened(question, rule, conclusion)
        open_ = _biased(question, rule, run, judged) if undecides is None else _by(undecides)
        if open_ is not None:
            return open_._replace(detail=f"{_would_be(impossible, conclusion)}, but {open_.detail}")
    if impossible:
        return Conclusion(Status.ERROR, Reason.IMPLAUSIBLE, impossible)
    if rule is None or conclusion.status not in (Status.PASS, Status.FAIL):
        return conclusion
    if differing := fingerprint.differing(rule.fingerprint, run):
        reason = f"the bound was measured in another setup: {'; '.join(differing)}"
        return Conclusion(Status.RECORDED, Reason.NOT_COMPARABLE, reason)
    claims = question.caveat(Severity.CLAIMS)
    if conclusion.status is Status.PASS and claims is not None:
        reason = f"{conclusion.detail}, but {claims.sentence}"
        return Conclusion(Status.RECORDED, Reason.PROVISIONAL, reason)
    if conclusion.status is Status.PASS:
        return conclusion
    if _is_provisional(rule, run):
        detail = f"would fail: {conclusion.detail}; a provisional bound decides nothing"
        return Conclusion(Status.RECORDED, Reason.WOULD_FAIL, detail)
    return _confirmed(question, rule, run, judged)


def _worsened(question: Question, rule: Threshold | None, of: Conclusion) -> Caveat | None:
    """Return the caveat that made the values worse if it could have caused this verdict."""
    if rule is None or of.status is not Status.PASS:
        return question.caveat(Severity.WORSENS)
    more = metrics.metric(question.metric).more_is_better
    stands = rule.at_most is None if more else rule.at_least is None
    return None if stands else question.caveat(Severity.WORSENS)


def _would_be(impossible: str, conclusion: Conclusion) -> str:
    """Return the decision that would have been reached without the caveat."""
    if impossible:
        return impossible
    if conclusion.status is Status.PASS:
        return "would pass"
    return f"would fail ({conclusion.detail})"


def _impossible(question: Question, judged: Judged, factor: float = 1.0) -> str:
    """Return why a value times ``factor`` cannot be true, or an empty string if it can."""
    if question.perfect is not None:
        estimate = judged.estimate
        share = (
            (estimate.value if estimate.low is None else estimate.low) * factor / question.perfect
        )
        if share > metrics.IMPLAUSIBLE * question.gain:
            return f"{share:.3g} of linear scaling is impossible: the baseline is wrong"
    caveat = question.caveat(Severity.IMPOSSIBLE)
    return "" if caveat is None else caveat.sentence


def _biased(
    question: Question, rule: Threshold | None, run: RunRecord, judged: Judged
) -> Conclusion | None:
    """Return an undecided conclusion if a bias could have caused this verdict, else None."""
    impossible = bool(_impossible(question, judged))
    for bias in question.caveats_of(Severity.BIASES):
        other = _judged(question, [v * bias.shift for v in question.first], rule, run)
        same = bool(_impossible(question, judged, bias.shift)) if impossible else True
        if other.status is not judged.status or not same:
            points = 100 * abs(other.estimate.value - judged.estimate.value)
            host = "noisy host: " if bias.reason is Reason.NOISY_HOST else ""
            reason = f"{host}{bias.sentence}: an effect of up to {points:.1f} points"
            return Conclusion(Status.INCONCLUSIVE, bias.reason, reason)
    return None


def _confirmed(question: Question, rule: Threshold, run: RunRecord, first: Judged) -> Conclusion:
    """Return FAIL if a fresh set of launches confirms it, else INCONCLUSIVE."""
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
        why = "the run stopped before a fresh set of launches could confirm the FAIL"
    return Conclusion(status, reason, f"{first.detail}; {why}")


def _is_aside(run: RunRecord, verdict: Verdict) -> bool:
    """Return whether a verdict is on simulated hardware in a run that asked for devices."""
    asks_for_devices = run.settings.device is not Device.CPU
    return run.schema >= ASIDE_SINCE and asks_for_devices and is_stand_in(run, verdict)


def is_stand_in(run: RunRecord, verdict: Verdict) -> bool:
    """Return whether simulated or shared hardware took part on either side of a verdict."""
    if run.settings.engine == StandIn.EMULATED or run.settings.shared_gpu:
        return True
    return any(run.stand_ins(case) for case in _compared(run, verdict))


def _compared(run: RunRecord, verdict: Verdict) -> list[CaseSpec]:
    """Return the cases on which a verdict is based: the judged case and its baselines."""
    cases = [*run.cases_by_hash.get(verdict.case_hash, ())]
    plan = run.plan_of.get(verdict.plan)
    if plan is not None:
        for contrast in plan.contrasts:
            if contrast.name == verdict.contrast:
                cases += [plan.arm(name).case for name in contrast.baseline]
    return cases


def _closed(open_: Conclusion, rule: Threshold, run: RunRecord) -> Conclusion:
    """Return RECORDED for an open conclusion if its bound is provisional.

    This applies to complete runs only. In an incomplete run the conclusion stays open, because
    further pairs of launches will make the value more precise.
    """
    if not _is_provisional(rule, run):
        return open_
    detail = f"undecided: {open_.detail}; a provisional bound decides nothing"
    return Conclusion(Status.RECORDED, Reason.PROVISIONAL, detail)


def _is_provisional(rule: Threshold, run: RunRecord) -> bool:
    return rule.source is BoundSource.PROVISIONAL and run.schema >= ASIDE_SINCE


def _waived(conclusion: Conclusion, rule: Threshold | None, run: RunRecord) -> Conclusion:
    """Apply the threshold's waiver, if it is valid on the day of the run.

    A waiver expects a FAIL. A FAIL is waived, and a PASS becomes a FAIL.
    """
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


def rules_for(
    thresholds: Sequence[Threshold], case: CaseSpec, contrast: Contrast, machine: Machine
) -> list[Threshold]:
    """Return every threshold that applies to a contrast; each of them leads to a verdict."""
    return [rule for rule in thresholds if rule.matches(case, contrast, machine)]


def verdicts(run: RunRecord) -> tuple[Verdict, ...]:
    """Return every verdict of a record: first the verdicts on series, then those on plans."""
    return (*of_series(run), *(verdict for plan in run.plans for verdict in of_plan(run, plan)))


def of_series(run: RunRecord) -> tuple[Verdict, ...]:
    """Return the verdicts on sweeps of the fabric and trials of features."""
    return tuple(
        conclude(question, rule, run) for s in series(run) for question, rule in s.questions(run)
    )


def of_plan(run: RunRecord, plan: Plan) -> list[Verdict]:
    """Return the verdicts of a plan, contrast by contrast.

    The curve consists of the contrasts of all world sizes below the largest. Thresholds judge these
    contrasts only if another contrast with the same metric fails.
    """
    contrasts = judged_of(plan, run.thresholds, run.machine)
    by_name: dict[str, list[Verdict]] = {}
    failed = set[str]()
    for contrast in sorted(contrasts, key=lambda contrast: contrast.curve):
        asked = replace(contrast, curve=contrast.curve and contrast.metric not in failed)
        case = plan.arm(contrast.subject).case
        rules = rules_for(run.thresholds, case, asked, run.machine)
        matching: list[Threshold | None] = [*rules] or [None]
        judged = [conclude(question(run, plan, contrast, rule), rule, run) for rule in matching]
        by_name[contrast.name] = judged
        failed |= {verdict.metric for verdict in judged if verdict.status is Status.FAIL}
    return [verdict for contrast in contrasts for verdict in by_name[contrast.name]]


def question(run: RunRecord, plan: Plan, contrast: Contrast, rule: Threshold | None) -> Question:
    """Return the question to the judge about a contrast and a threshold, built from the record."""
    evidence = ContrastData.of(run, plan, contrast)
    case = evidence.subject
    blocks = find_blocker(evidence)
    bare = Question(
        name=contrast.name,
        case=case.id,
        case_hash=case.hash,
        plan=plan.hash,
        metric=contrast.metric,
        against=contrast.against,
        caveats=() if blocks is None else (blocks,),
    )
    if blocks is not None:
        return bare
    statistic = rule.statistic if rule else Statistic.MEAN
    first, again = (pairs(run, plan, contrast, statistic, attempt) for attempt in (0, 1))
    if not first.values:
        return replace(bare, caveats=(_no_pairs(run, plan, contrast),))
    return replace(
        bare,
        first=first.values,
        again=again.values,
        p95=pairs(run, plan, contrast, Statistic.P95).values,
        launches=(*first.launches, *again.launches),
        horizon=2 * plan.protocol.max_blocks,
        caveats=tuple(_caveats(evidence)),
        perfect=_perfect(evidence),
        gain=_gain(evidence),
    )


def _caveats(evidence: ContrastData) -> Iterator[Caveat]:
    """Yield every caveat of a contrast, except those that keep it from being judged."""
    if sentence := _above_peak(evidence) or biases.excess(evidence):
        yield Caveat(code=Reason.IMPLAUSIBLE, severity=Severity.IMPOSSIBLE, sentence=sentence)
    if (undecides := find_doubt(evidence)) is not None:
        yield undecides
    yield from biases.find_biases(evidence)
    if sentence := claimed(evidence):
        yield Caveat(code=Reason.PROVISIONAL, severity=Severity.CLAIMS, sentence=sentence)
    if sentence := biases.kept(evidence):
        yield Caveat(code=Reason.NOT_COMPARABLE, severity=Severity.LIMITS, sentence=sentence)
    if sentence := unquiet(evidence):
        yield Caveat(code=Reason.NOISY_HOST, severity=Severity.NOTES, sentence=sentence)


def _above_peak(evidence: ContrastData) -> str:
    """Return a sentence if a device computed more than its peak allows, else an empty string."""
    run = evidence.run
    plan = evidence.plan
    used = mfu(run, plan, evidence.contrast.subject)
    possible = max(1.0, roofline_mfu(run, plan, evidence.contrast.subject) or 0.0)
    if used is None or used <= possible:
        return ""
    return f"{used:.2f} of the device's peak FLOP/s is impossible"


def _no_pairs(run: RunRecord, plan: Plan, contrast: Contrast) -> Caveat:
    """Return the caveat for a contrast that has no pairs although no launch failed."""
    if metrics.metric(contrast.metric).of_loss:
        steps = plan.protocol.steps
        reason = f"no loss came within {plan.to_loss} nats of the loss floor in {steps} steps"
        return blocker(Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, reason)
    if (untold := _untold(run, plan, contrast)) is not None:
        return blocker(Status.INCONCLUSIVE, Reason.NOT_MEASURED, untold)
    if not metrics.metric(contrast.metric).profiled:
        return unmeasured(run, plan, "no pair of launches was measured")
    reason = "this metric needs a profiled launch: none was made (--no-timeline or time budget)"
    if timed(run, plan, purpose=Purpose.PROFILE):
        reason = "the profiled launches lack this metric: see scaleproof report timeline RUN"
    return blocker(Status.INCONCLUSIVE, Reason.OUT_OF_TIME, reason)


def _untold(run: RunRecord, plan: Plan, contrast: Contrast) -> str | None:
    """Return why no launch on this machine can provide the metric of a contrast, or None."""
    metric = metrics.metric(contrast.metric)
    case = plan.arm(contrast.subject).case
    if metric.of_fabric and not bus_bps(run, case):
        return f"{contrast.metric} needs a sweep of the fabric, which was not made (--no-fabric)"
    if metric.logged and any(launch.usable for launch in timed(run, plan)):
        return f"the training logged no finite values of {contrast.metric} in its timed windows"
    lacks = [name for name in (*metric.times, *metric.over) if not factor(run, case, name)]
    if lacks:
        return f"{contrast.metric} needs {NEEDED[lacks[0]]}"
    launches = [x for x in timed(run, plan) if x.arm == contrast.subject and x.usable]
    if launches and metric.of_device and all(launch.value(metric) is None for launch in launches):
        return f"nothing on this machine reports {contrast.metric}"
    return None


def _perfect(evidence: ContrastData) -> float | None:
    """Return the ratio of throughputs under perfect scaling, or None for all other metrics.

    A comparison of two different cases does not measure scaling, so perfect scaling does not limit
    its ratio. For example,
    a compressor on a slow link or a newer torch may double the throughput.
    """
    metric = metrics.metric(evidence.contrast.metric)
    if metric.read != "throughput" or metric.form is not Form.RATIO or not metric.scaling:
        return None
    if metric.of_fabric:
        return None
    if metric.of_schedule:
        return 1.0
    subject, *baseline = (arm.case.world_size for arm in evidence.arms)
    linear = subject / sum(baseline)
    return 1.0 if metric.per_rank else linear


def _gain(evidence: ContrastData) -> float:
    """Return the factor by which a subject may exceed linear scaling.

    If ranks divide the optimizer's work among themselves, each rank does less of it than the
    baseline's. AdamW moves 28 B for every parameter: it reads the weight, the gradient and two
    moments, and writes the weight and the moments. The optimizer is assumed to take at most half of
    a baseline's step. In strong scaling, the smaller batch of a rank may also fit into caches.
    """
    case = evidence.subject
    described = evidence.run.described[case.hash]
    expected, facts = described.expected, described.facts
    sharded = expected is not None and (
        expected.stages > 1 or any("Shard" in placed for placed in expected.placements)
    )
    below = evidence.timed_of(evidence.contrast.baseline)
    steps = [launch.steps.mean_s for launch in below if launch.steps and not launch.attempt]
    faster = biases.faster_alone(evidence)
    if not sharded or facts is None or not steps or case.world_size < 2:
        return faster
    optimizer_s = ADAMW_BYTES * facts.num_params * facts.trained / MEMORY_BYTES[case.device]
    saved = min(0.5, optimizer_s / fmean(steps)) * (1 - 1 / case.world_size)
    return faster / (1 - saved)


def undecided(run: RunRecord, plan: Plan) -> list[Verdict]:
    """Return the open verdicts of a plan that more measurements could decide.

    The measurements are further blocks of launches, or another probe of the slowdown by concurrent
    launches.
    """
    judged = of_plan(run, plan)
    helped = [
        verdict
        for verdict in judged
        if verdict.more is not None or verdict.reason is Reason.NEIGHBOURS
    ]
    return [verdict for verdict in helped if verdict.status is Status.INCONCLUSIVE]


def unconfirmed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts that become a FAIL if a fresh set of launches confirms them."""
    return [
        verdict for verdict in verdicts if verdict.reason in (Reason.UNCONFIRMED, Reason.DISAGREE)
    ]
