"""From a record to its verdicts. Offline and without torch.

Where ``obstacles`` finds none, ``judge`` decides; what it decided stands only on a
quiet host, on steady launches, and a FAIL only if a fresh set confirms it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.judging import fingerprint, obstacles, sequential
from harness.analysis.judging import pairs as contrasts
from harness.analysis.judging.judge import ALPHA, Estimate, Judged, judge, lag1, worst
from harness.analysis.judging.pairs import pairs, timed
from harness.analysis.samples import steadiness
from harness.base.stats import median
from harness.host import admission
from harness.host.admission import Level
from harness.record import Purpose, RunRecord
from harness.record.outcome import Reason, Status, Verdict
from harness.spec import CaseSpec, Contrast, Plan, metrics
from harness.spec.metrics import Form
from harness.spec.rules import Statistic, Threshold

#: Throughput per rank above this share of the baseline's is not scaling, it is a mistake.
IMPLAUSIBLE_EFFICIENCY = 1.1

#: Profiled steps longer than this by factor are another program's: no attribution.
PERTURBED = 1.05


def rules_for(
    thresholds: Sequence[Threshold], case: CaseSpec, contrast: Contrast, hardware: str
) -> list[Threshold]:
    """Every rule that judges a contrast: all are judged, none wins silently."""
    return [t for t in thresholds if t.matches(case, contrast, hardware)]


def verdicts(run: RunRecord) -> tuple[Verdict, ...]:
    """All verdicts of a record, recomputed from it."""
    return tuple(v for plan in run.plans for v in verdicts_of(run, plan))


def verdicts_of(run: RunRecord, plan: Plan) -> list[Verdict]:
    """The verdicts of one plan."""
    out: list[Verdict] = []
    for contrast in contrasts.of(plan, run.thresholds, run.machine.hardware_class):
        case = plan.arm(contrast.subject).case
        rules = rules_for(run.thresholds, case, contrast, run.machine.hardware_class)
        every: list[Threshold | None] = [*rules] or [None]
        out += [verdict(run, plan, contrast, rule) for rule in every]
    return out


def undecided(run: RunRecord, plan: Plan) -> list[Verdict]:
    """Verdicts of a plan that more blocks could decide."""
    helped = (Reason.SPANS_BOUND, Reason.PAIRS_SPLIT, Reason.TOO_FEW_PAIRS)
    found = verdicts_of(run, plan)
    return [v for v in found if v.status is Status.INCONCLUSIVE and v.reason in helped]


def unconfirmed(run: RunRecord, plan: Plan) -> list[Verdict]:
    """FAILs of a plan that no fresh set has confirmed yet."""
    wanted = (Reason.UNCONFIRMED, Reason.DISAGREE)
    return [v for v in verdicts_of(run, plan) if v.reason in wanted]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a contrast came to before waivers: status, why, and the figures behind it."""

    status: Status
    reason: Reason
    detail: str
    judged: Judged | None = None
    values: tuple[float, ...] = ()
    again: tuple[float, ...] = ()
    launches: tuple[str, ...] = ()


def verdict(run: RunRecord, plan: Plan, contrast: Contrast, rule: Threshold | None) -> Verdict:
    """One contrast under one rule."""
    form = metrics.metric(contrast.metric).form
    case = plan.arm(contrast.subject).case
    found = _find(run, plan, contrast, rule)
    status, reason, detail = waived(run, rule, found.status, found.reason, found.detail)
    e = found.judged.estimate if found.judged else None
    p95 = pairs(run, plan, contrast, Statistic.P95).values if e else ()
    return Verdict(
        contrast=contrast.name,
        case=case.id,
        case_hash=case.hash,
        plan=plan.hash,
        metric=contrast.metric,
        against=contrast.against,
        rule=rule.name if rule else None,
        bound=rule.bound if rule else "",
        status=status,
        reason=reason,
        detail=detail,
        value=e.value if e else None,
        low=e.low if e else None,
        high=e.high if e else None,
        n=e.n if e else 0,
        mde=found.judged.mde if found.judged else None,
        pairs=found.values,
        launches=found.launches,
        evidence=found.judged.evidence if found.judged else None,
        p95=judge(p95, None, form).estimate.value if p95 else None,
        worst=worst(found.values, rule, form),
        sd=e.sd if e else None,
        lag1=lag1(found.values),
        again=found.again,
        waived=reason is Reason.WAIVED,
    )


def waived(
    run: RunRecord, rule: Threshold | None, status: Status, reason: Reason, detail: str
) -> tuple[Status, Reason, str]:
    """What a waiver leaves of a verdict: an expected FAIL is waived, a PASS is unexpected."""
    today = datetime.date.fromisoformat(run.started_at[:10])
    if rule is not None and rule.waiver is not None and rule.waived(today):
        if status is Status.FAIL:
            told = f"{detail}; waived until {rule.waiver.expires}: {rule.waiver.reason}"
            return status, Reason.WAIVED, told
        if status is Status.PASS:
            told = f"met, but a waiver says it fails ({rule.waiver.reason}): remove the waiver"
            return Status.FAIL, Reason.UNEXPECTED_PASS, told
    return status, reason, detail


def _find(run: RunRecord, plan: Plan, contrast: Contrast, rule: Threshold | None) -> _Found:
    """Obstacles first, then the judge, then what its answer must survive."""
    form = metrics.metric(contrast.metric).form
    stopped = obstacles.obstacle(run, plan, contrast)
    if stopped is not None:
        return _Found(status=stopped[0], reason=stopped[1], detail=stopped[2])
    statistic = rule.statistic if rule else Statistic.MEAN
    first = pairs(run, plan, contrast, statistic)
    if not first.values and metrics.profiled(contrast.metric):
        why = "no profiled launch shows it: none was made (--no-timeline, or over the time budget)"
        if timed(run, plan, purpose=Purpose.PROFILE):
            why = "the profiled launches do not show it: see scaleproof timeline RUN"
        return _Found(status=Status.INCONCLUSIVE, reason=Reason.OUT_OF_TIME, detail=why)
    if not first.values:
        status, reason = obstacles.unmeasured(run, plan)
        return _Found(status=status, reason=reason, detail="no pair of launches was measured")
    judged = judge(first.values, rule, form)
    status, reason, detail = judged.status, judged.reason, judged.detail
    again = pairs(run, plan, contrast, statistic, attempt=1)
    if (impossible := _impossible(run, plan, contrast, judged.estimate)) is not None:
        status, reason, detail = Status.ERROR, Reason.IMPLAUSIBLE, impossible
    elif status in (Status.PASS, Status.FAIL) and rule is not None:
        differing = fingerprint.differing(rule.fingerprint, run)
        doubt = _doubt(run, plan, contrast)
        if differing:
            status, reason = Status.RECORDED, Reason.NOT_COMPARABLE
            detail = f"the bound is of another setup: {'; '.join(differing)}"
        elif doubt is not None:
            status, (reason, why) = Status.INCONCLUSIVE, doubt
            detail = f"{detail}, but {why}"
        elif status is Status.FAIL:
            second = judge(again.values, rule, form) if again.values else None
            status, reason, more = confirmed(run, judged, second)
            detail = f"{detail}; {more}"
    return _Found(
        status=status, reason=reason, detail=detail, judged=judged, values=first.values,
        again=again.values, launches=(*first.launches, *again.launches),
    )  # fmt: skip


def confirmed(run: RunRecord, first: Judged, second: Judged | None) -> tuple[Status, Reason, str]:
    """What is left of a FAIL after a fresh set: a FAIL, or no decision; never a PASS."""
    if second is None:
        if not run.complete:
            return Status.INCONCLUSIVE, Reason.INTERRUPTED, "stopped before it was confirmed"
        why = "no fresh set of launches confirms it"
        return Status.INCONCLUSIVE, Reason.UNCONFIRMED, why
    figure = f"{second.estimate.value:.4g} in {second.estimate.n} fresh pairs"
    if second.status is Status.FAIL and second.missed is first.missed:
        return Status.FAIL, Reason.NOT_MET, f"confirmed: {figure}"
    return Status.INCONCLUSIVE, Reason.DISAGREE, f"a fresh set does not confirm it: {figure}"


def _doubt(run: RunRecord, plan: Plan, contrast: Contrast) -> tuple[Reason, str] | None:
    """Why neither PASS nor FAIL may stand: a noisy host, or launches that were not steady."""
    if not metrics.timed(contrast.metric):
        return None
    if metrics.profiled(contrast.metric) and (why := _perturbed(run, plan, contrast)) is not None:
        return Reason.PERTURBED, why
    bad = [f for f in run.admission if f.level is Level.BAD]
    if bad:
        advice = f" ({bad[0].advice})" if bad[0].advice else ""
        return Reason.NOISY_HOST, f"noisy host: {'; '.join(f.text for f in bad)}{advice}"
    launches = contrasts.rests_on(run, plan, contrast)
    spread = contrasts.like_launches_sd(launches)
    if spread is not None and spread > admission.LAUNCH_SD:
        return Reason.NOISY_HOST, (
            f"noisy host: launches of one arm in one block differ by {spread:.0%} (A/A);"
            " give it quiet cores, fixed clocks, or another machine"
        )
    loads = [x.foreign_load for x in launches if x.foreign_load is not None]
    if loads and median(loads) > admission.FOREIGN_LOAD:
        return Reason.NOISY_HOST, (
            f"noisy host: others used {median(loads):.0%} of the ranks' cores (median launch);"
            " find who it is (top -d 1) and run again"
        )
    slowed = sorted({r for x in launches for g in x.gpus for r in g.throttle if "thermal" in r
                     or "hw_" in r})  # fmt: skip
    if slowed:
        return Reason.NOISY_HOST, f"noisy host: devices were slowed ({', '.join(slowed)})"
    for name in sorted({contrast.subject, *contrast.baseline}):
        own = [x for x in timed(run, plan, None) if x.arm == name and x.steadiness]
        found = [x.steadiness for x in own if x.steadiness]
        if (odd := steadiness.outlier(found)) is not None:
            drift = math.expm1(found[odd].drift)
            return Reason.NOT_STEADY, f"{own[odd].launch} was not steady: {drift:+.1%} over it"
        if steadiness.drifts(found):
            drift = math.expm1(math.fsum(s.drift for s in found) / len(found))
            why = f"{plan.arm(name).case.id} is not steady: {drift:+.1%} in every launch"
            return Reason.NOT_STEADY, why
    return None


def _perturbed(run: RunRecord, plan: Plan, contrast: Contrast) -> str | None:
    """Why the profiler changed what it looked at too much for its shares to be judged, if so."""
    own = timed(run, plan, None, Purpose.PROFILE)
    found = [x.perturbation for x in own if x.arm == contrast.subject and x.perturbation]
    if not found or median(found) <= PERTURBED:
        return None
    return (
        f"profiled steps take {median(found):.2f}x as long as others (limit {PERTURBED}):"
        " use longer steps (a larger model or batch), or judge communication_cost"
    )


def _impossible(run: RunRecord, plan: Plan, contrast: Contrast, e: Estimate) -> str | None:
    """Why a value cannot be, if so: surely more than linear scaling, or than the device's peak."""
    metric = metrics.metric(contrast.metric)
    if metric.quantity == "throughput" and metric.form is Form.RATIO:
        surely = e.value if e.low is None else e.low
        ranks = sum(plan.arm(b).case.world_size for b in contrast.baseline)
        linear = plan.arm(contrast.subject).case.world_size / ranks
        efficiency = surely / (linear if contrast.metric == "speedup" else 1.0)
        if contrast.metric == "efficiency_of_ideal":
            efficiency *= contrasts.ideal(run, plan, contrast) / contrast.ideal
        if efficiency > IMPLAUSIBLE_EFFICIENCY:
            return f"{efficiency:.3g} of linear scaling is not possible: the baseline is wrong"
    used = contrasts.mfu(run, plan, contrast.subject)
    if used is not None and used > 1:
        return f"{used:.2f} of the device's peak FLOP/s is not possible"
    return None


def together(found: Sequence[Verdict]) -> tuple[int, int]:
    """How many PASSes, and FAILs, hold together at a false discovery rate of 5 % (e-BH).

    Each verdict alone errs at most one time in twenty; with dozens of them some would.
    """
    judged = [v for v in found if v.rule and v.value is not None and v.status is not Status.ERROR]
    out = []
    for status in (Status.PASS, Status.FAIL):
        evidence = [(v.evidence or 0.0) if v.status is status else 0.0 for v in judged]
        out.append(len(sequential.discoveries(evidence, ALPHA / 2)))
    return out[0], out[1]
