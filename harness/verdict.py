"""The judge: a contrast of a record, and a rule, to a Verdict. Offline and without torch.

Correct before fast: a case that failed its gate, a launch that failed or ran something else than
was asked, is an ERROR and its speed is not looked at. PASS needs the whole interval on the right
side of the bound, FAIL the whole interval on the wrong side; everything else is INCONCLUSIVE.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness import contrasts, stats
from harness.contrasts import ALPHA, Estimate, Pairs, estimate, gates, pairs, timed
from harness.machine import Machine
from harness.outcome import Reason, Status, Verdict
from harness.record import Described, LaunchRecord, LaunchStatus, RunRecord
from harness.spec import CaseSpec, Contrast, Device, Mode, Plan, Precision, Role
from harness.thresholds import Source, Statistic, Threshold
from harness.units import METRICS, Form

#: Throughput per rank above this share of the baseline's is not scaling, it is a mistake.
IMPLAUSIBLE_EFFICIENCY = 1.1
#: Memory growth below this a step, or seen over fewer steps, is an allocator that settles.
LEAK_BYTES, LEAK_STEPS = 65_536, 20
#: A PASS rests on this many pairs at least, whatever a protocol says.
MIN_PAIRS = 8
#: Step-1 gradient norms of a strong ladder's rungs agree within this, by precision.
NORM_LIMIT = {Precision.FP32: 1e-5, Precision.AUTOCAST: 2e-2, Precision.BF16: 2e-2}


class Method(StrEnum):
    """How pairs become an interval. The seam for anytime-valid sequences."""

    T = "t interval, error split over the looks"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a rule made of an estimate."""

    status: Status
    reason: Reason
    estimate: Estimate
    mde: float | None


def judge(
    found: Pairs,
    rule: Threshold | None,
    *,
    form: Form,
    looks: int,
    method: Method = Method.T,
) -> Judged:
    """Judge paired values against a rule; without one they are RECORDED.

    The judge may look ``looks`` times while pairs come in, so each look spends 1 / looks of the
    two-sided 5 % error (Bonferroni): the chance of any wrong decision stays below 2.5 % a side.
    """
    assert method is Method.T
    alpha = ALPHA / looks
    e = estimate(found.values, form, alpha)
    mde = stats.smallest_detectable(e.sd, e.n, alpha)
    if rule is None:
        return Judged(status=Status.RECORDED, reason=Reason.NO_RULE, estimate=e, mde=mde)
    if e.n < 2 or e.low is None or e.high is None:
        return Judged(status=Status.RECORDED, reason=Reason.TOO_FEW_PAIRS, estimate=e, mde=mde)
    low, high = rule.at_least, rule.at_most
    if rule.statistic is Statistic.WORST:
        shown = [1 - v for v in found.values] if form is Form.SAVED else list(found.values)
        met = (low is None or min(shown) >= low) and (high is None or max(shown) <= high)
        missed = not met
    else:
        met = (low is None or e.low >= low) and (high is None or e.high <= high)
        missed = (low is not None and e.high < low) or (high is not None and e.low > high)
    if missed:
        return Judged(status=Status.FAIL, reason=Reason.NOT_MET, estimate=e, mde=mde)
    if not met:
        return Judged(status=Status.INCONCLUSIVE, reason=Reason.SPANS_BOUND, estimate=e, mde=mde)
    if e.n < MIN_PAIRS:
        return Judged(status=Status.INCONCLUSIVE, reason=Reason.TOO_FEW_PAIRS, estimate=e, mde=mde)
    if rule.source in (Source.CLAIMED, Source.PROVISIONAL):
        return Judged(status=Status.RECORDED, reason=Reason.PROVISIONAL, estimate=e, mde=mde)
    return Judged(status=Status.PASS, reason=Reason.MET, estimate=e, mde=mde)


def rules_for(
    thresholds: Sequence[Threshold], case: CaseSpec, contrast: Contrast, hardware: str
) -> list[Threshold]:
    """Every rule that judges a contrast: all are judged, none wins silently."""
    return [t for t in thresholds if t.matches(case, contrast, hardware)]


def verdicts(run: RunRecord) -> tuple[Verdict, ...]:
    """All verdicts of a record, recomputed from it."""
    out: list[Verdict] = []
    for plan in run.plans:
        for contrast in plan.contrasts:
            case = plan.arm(contrast.subject).case
            rules = rules_for(run.thresholds, case, contrast, run.machine.hardware_class)
            every: list[Threshold | None] = [*rules] or [None]
            out += [verdict(run, plan, contrast, rule) for rule in every]
    return tuple(out)


def verdict(run: RunRecord, plan: Plan, contrast: Contrast, rule: Threshold | None) -> Verdict:
    """One contrast under one rule."""
    metric = METRICS[contrast.metric]
    case = plan.arm(contrast.subject).case
    statistic = rule.statistic if rule else Statistic.MEAN
    found = Pairs(values=(), launches=())
    if metric.form is not Form.GATE:
        found = pairs(run, plan, contrast, statistic)
    stopped = _obstacle(run, plan, contrast)
    if stopped is None and found.values:
        judged = judge(found, rule, form=metric.form, looks=plan.protocol.looks)
        e, mde = judged.estimate, judged.mde
        status, reason, detail = judged.status, judged.reason, _detail(judged, rule)
        if (impossible := _impossible(run, plan, contrast, e)) is not None:
            status, reason, detail = Status.ERROR, Reason.IMPLAUSIBLE, impossible
    else:
        e = Estimate(value=math.nan, low=None, high=None, sd=None, n=0)
        mde = None
        status, reason, detail = stopped or (
            *_unmeasured(run),
            "no pair of launches was measured",
        )
    waived = False
    if rule is not None and rule.waiver is not None:
        today = datetime.date.fromisoformat(run.started_at[:10])
        if rule.waived(today) and status is Status.FAIL:
            waived, reason = True, Reason.WAIVED
            detail = f"{detail}; waived until {rule.waiver.expires}: {rule.waiver.reason}"
        elif rule.waived(today) and status is Status.PASS:
            status, reason = Status.FAIL, Reason.UNEXPECTED_PASS
            detail = f"met, but a waiver says it fails ({rule.waiver.reason}): remove the waiver"
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
        value=None if math.isnan(e.value) else e.value,
        low=e.low,
        high=e.high,
        n=e.n,
        mde=mde,
        pairs=found.values,
        launches=found.launches,
        waived=waived,
    )


def _impossible(run: RunRecord, plan: Plan, contrast: Contrast, e: Estimate) -> str | None:
    """Why a value cannot be, if so: surely more than linear scaling, or than the device's peak."""
    metric = METRICS[contrast.metric]
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


def _detail(judged: Judged, rule: Threshold | None) -> str:
    """One sentence on how the bound was met, missed or left open."""
    e = judged.estimate
    if rule is None:
        return "no rule applies"
    if judged.reason is Reason.TOO_FEW_PAIRS:
        return f"n = {e.n}: too few pairs of launches to judge"
    if judged.reason is Reason.PROVISIONAL:
        return f"meets {rule.bound}, but a {rule.source} bound passes nothing by itself"
    if judged.reason is Reason.SPANS_BOUND:
        return f"interval spans {rule.bound} after {e.n} pairs"
    if rule.statistic is Statistic.WORST:
        return f"worst of {e.n} pairs against {rule.bound}"
    if judged.status is Status.FAIL:
        best = e.high if rule.at_least is not None and e.value < rule.at_least else e.low
        return f"{best:.4g} at best, bound {rule.bound}"
    return f"{rule.bound} holds over the whole interval"


def fits(described: Described, case: CaseSpec, machine: Machine) -> bool:
    """Whether a case's closed-form memory is within the device's (or the host's share)."""
    if described.expected is None:
        return False
    if case.device is Device.CUDA:
        if machine.gpu_memory_gib is None:
            return True
        return described.expected.memory_bytes <= 0.95 * machine.gpu_memory_gib * 2**30
    ranks = max(case.nodes)
    return described.expected.memory_bytes * ranks <= 0.9 * machine.memory_gib * 2**30


Obstacle = tuple[Status, Reason, str]


def _unmeasured(run: RunRecord) -> tuple[Status, Reason]:
    """Not green in either case: a bug in a complete run, open in one that was stopped."""
    if run.complete:
        return Status.ERROR, Reason.NOT_MEASURED
    return Status.INCONCLUSIVE, Reason.INTERRUPTED


def _obstacle(run: RunRecord, plan: Plan, contrast: Contrast) -> Obstacle | None:
    """Why this contrast may not be judged by its speed, if so."""
    arms = [plan.arm(n) for n in (contrast.subject, *contrast.baseline)]
    for arm in arms:
        described = run.described.get(arm.case.hash)
        if described is None:
            return *_unmeasured(run), f"{arm.case.id} was not measured"
        if described.error:
            return Status.ERROR, Reason.LAUNCH_FAILED, f"{arm.case.id}: {described.error}"
        if described.unsupported:
            return Status.SKIP, Reason.UNSUPPORTED, f"{arm.case.id}: {described.unsupported}"
        if not fits(described, arm.case, run.machine):
            return Status.SKIP, Reason.DOES_NOT_FIT, f"{arm.case.id} does not fit in memory"
    if contrast.against == "smallest_fit" and contrast.baseline[0] != smallest_fit(run, plan):
        return Status.SKIP, Reason.UNSUPPORTED, f"the smallest fit is {smallest_fit(run, plan)}"
    checked = gates(run)
    for arm in arms:
        gate = checked.get(arm.case.hash)
        if arm.role is Role.CONTROL:
            return _control(gate)
        if gate is None:
            return *_unmeasured(run), f"{arm.case.id} was never checked"
        if (failure := gate_failure(gate)) is not None:
            reason = Reason.LAUNCH_FAILED if gate.cause else Reason.INCORRECT
            if failure.startswith("bytes."):
                reason = Reason.WRONG_BYTES
            whose = "" if arm.name == contrast.subject else f"{arm.case.id}: "
            return Status.ERROR, reason, f"{whose}{failure}"
    if (mismatch := _norms(plan, contrast, checked)) is not None:
        return Status.ERROR, Reason.INCORRECT, mismatch
    names = {a.name for a in arms}
    for launch in timed(run, plan):
        if launch.arm not in names:
            continue
        if launch.status is LaunchStatus.FAILED:
            return Status.ERROR, Reason.LAUNCH_FAILED, blame(launch)
        if launch.wrong:
            return Status.ERROR, Reason.WRONG_WORLD, f"{launch.launch}: {launch.wrong[0]}"
    return None


def smallest_fit(run: RunRecord, plan: Plan) -> str:
    """The name of the plan's smallest subject arm that fits."""
    fitting = [
        a
        for a in plan.arms
        if a.role is Role.SUBJECT
        and (d := run.described.get(a.case.hash)) is not None
        and not d.unsupported
        and fits(d, a.case, run.machine)
    ]
    return min(fitting, key=lambda a: a.case.world_size).name if fitting else ""


def gate_failure(gate: LaunchRecord) -> str | None:
    """The first check that failed, as a sentence; None if all hold on every rank."""
    if gate.status is not LaunchStatus.OK:
        return f"correctness gate: {blame(gate)}"
    for rank in gate.ranks:
        for check in rank.checks:
            if not check.ok:
                figures = (
                    "" if check.value is None else f" {check.value:.6g} against {check.limit:.6g}"
                )
                detail = f" ({check.detail})" if check.detail else ""
                return f"{check.name} on rank {rank.rank}:{figures}{detail}"
    if not gate.ranks or not all(r.checks for r in gate.ranks):
        return "correctness gate: nothing was checked"
    return None


def blame(launch: LaunchRecord) -> str:
    """Which rank ended a launch, in which phase, how sure that is, and where its log lies."""
    cause = launch.cause
    if cause is None:
        return f"{launch.launch} did not finish"
    sure = "" if cause.sure else " (not sure of the rank)"
    where = (
        f"{cause.phase}, step {cause.step}" if cause.phase in ("warmup", "steady") else cause.phase
    )
    log = f"launches/{launch.launch}/rank{cause.rank}.log"
    return f"rank {cause.rank}: {cause.message}{sure} (in {where}; log {log})"


def _control(gate: LaunchRecord | None) -> Obstacle:
    """A control passes only if its bytes gave it away: not by crashing, not by another check."""
    if gate is None or gate.status is not LaunchStatus.OK:
        return Status.ERROR, Reason.NOT_MEASURED, "the gate did not run to its end"
    wrong = [c for c in gate.ranks[0].checks if c.name.startswith("bytes.") and not c.ok]
    if not wrong:
        return Status.FAIL, Reason.NOT_CAUGHT, "the byte checks let a known-wrong case pass"
    sent = [c for c in wrong if c.name == "bytes.sent"]
    return Status.PASS, Reason.CAUGHT, f"caught: {(sent or wrong)[0].detail}"


def _norms(plan: Plan, contrast: Contrast, checked: Mapping[str, LaunchRecord]) -> str | None:
    """Strong ladder: the first step's gradient norm must not depend on the world size."""
    subject = plan.arm(contrast.subject).case
    if subject.mode is not Mode.STRONG or subject.compressor:
        return None
    norm = checked[subject.hash].ranks[0].grad_norm
    for name in contrast.baseline:
        case = plan.arm(name).case
        other = checked[case.hash].ranks[0].grad_norm
        if norm is None or other is None or case.global_batch != subject.global_batch:
            continue
        if (case.model, case.size) != (subject.model, subject.size):
            continue
        error = abs(norm - other) / max(other, 1e-300)
        if error > NORM_LIMIT[subject.precision]:
            return f"step-1 gradient norm {norm:.8g}, {other:.8g} on {name}: {error:.1e} apart"
    return None


def expected_false_fails(found: Sequence[Verdict]) -> float:
    """How many FAILs to expect from chance alone if every requirement just held."""
    return (
        ALPHA / 2 * sum(v.status in (Status.PASS, Status.FAIL, Status.INCONCLUSIVE) for v in found)
    )


def findings(run: RunRecord) -> list[str]:
    """What is worth a sentence without being a verdict: leaks, irreproducible losses, stand-ins."""
    out = []
    for plan in run.plans:
        for arm in plan.arms:
            own = [x for x in timed(run, plan) if x.arm == arm.name and x.steps is not None]
            slopes = [x.growth for x in own if x.growth and x.steps and x.steps.count >= LEAK_STEPS]
            grows = [g for g in slopes if g.low > LEAK_BYTES and g.steady >= 0.5]
            if len(own) >= 2 and len(grows) == len(own):
                rate = stats.median([g.slope for g in grows])
                out.append(
                    f"{arm.case.id}: memory grows {rate / 1e3:.0f} kB a step in every launch"
                )
            if len({x.losses for x in own}) > 1:
                out.append(f"{arm.case.id}: not reproducible, losses differ between launches")
    gpus: dict[str, int] = {}
    for launch in run.launches:
        for gpu in launch.gpus:
            states = [*gpu.throttle, *(["lost"] if gpu.lost else [])]
            if states:
                name = f"GPU {gpu.index} ({gpu.name}): {', '.join(states)}"
                gpus[name] = gpus.get(name, 0) + 1
    out += [f"{name} in {count} launches" for name, count in gpus.items()]
    return list(dict.fromkeys(out))


def reproducible(run: RunRecord) -> str:
    """In how many arms all launches gave the same losses to the bit."""
    arms: dict[tuple[str, str], set[str]] = {}
    for launch in run.launches:
        if launch.steps is not None:
            arms.setdefault((launch.plan, launch.arm), set()).add(launch.losses)
    same = sum(len(digests) == 1 for digests in arms.values())
    return f"equal to the bit between the launches of {same} of {len(arms)} arms"
