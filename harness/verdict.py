"""From a record to its verdicts. Offline and without torch.

Correct before fast: a case that failed its gate, a launch that failed or ran something else than
was asked, is an ERROR and its speed is not looked at. Then ``harness.judge`` decides; what it
decided stands only on a quiet host, on steady launches, and a FAIL only if a fresh set confirms it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import admission, contrasts, fingerprint, sequential, steadiness, units
from harness.admission import Level
from harness.contrasts import gates, pairs, timed
from harness.judge import ALPHA, Estimate, Judged, judge, lag1, worst
from harness.machine import Machine
from harness.outcome import Reason, Status, Verdict
from harness.profiles import PERTURBED
from harness.record import Described, LaunchRecord, LaunchStatus, Purpose, RunRecord
from harness.spec import CaseSpec, Contrast, Device, Mode, Plan, Precision, Role
from harness.stats import median
from harness.thresholds import Statistic, Threshold
from harness.units import Form

#: Throughput per rank above this share of the baseline's is not scaling, it is a mistake.
IMPLAUSIBLE_EFFICIENCY = 1.1
#: Step-1 gradient norms of a strong ladder's rungs agree within this, by precision.
NORM_LIMIT = {Precision.FP32: 1e-5, Precision.AUTOCAST: 2e-2, Precision.BF16: 2e-2}


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
    form = units.metric(contrast.metric).form
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
    form = units.metric(contrast.metric).form
    stopped = _obstacle(run, plan, contrast)
    if stopped is not None:
        return _Found(status=stopped[0], reason=stopped[1], detail=stopped[2])
    statistic = rule.statistic if rule else Statistic.MEAN
    first = pairs(run, plan, contrast, statistic)
    if not first.values and units.profiled(contrast.metric):
        why = "no profiled launch shows it: none was made (--no-timeline, or over the time budget)"
        if timed(run, plan, purpose=Purpose.PROFILE):
            why = "the profiled launches do not show it: see scaleproof timeline RUN"
        return _Found(status=Status.INCONCLUSIVE, reason=Reason.OUT_OF_TIME, detail=why)
    if not first.values:
        status, reason = _unmeasured(run, plan)
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
    if not units.timed(contrast.metric):
        return None
    if units.profiled(contrast.metric) and (why := _perturbed(run, plan, contrast)) is not None:
        return Reason.PERTURBED, why
    bad = [f for f in run.admission if f.level is Level.BAD]
    if bad:
        advice = f" ({bad[0].advice})" if bad[0].advice else ""
        return Reason.NOISY_HOST, f"noisy host: {'; '.join(f.text for f in bad)}{advice}"
    launches = _launches(run, plan, contrast)
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
    metric = units.metric(contrast.metric)
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


def fits(described: Described, case: CaseSpec, machine: Machine) -> bool:
    """Whether a case's ranks find their devices, and its closed-form memory is within theirs (or
    within the host's).
    """
    if described.expected is None:
        return False
    if case.device is Device.CUDA:
        if case.devices_per_rank > 1 and max(case.nodes) * case.devices_per_rank > machine.num_gpus:
            return False
        if machine.gpu_memory_gib is None:
            return True
        return described.expected.memory_bytes <= 0.95 * machine.gpu_memory_gib * 2**30
    ranks = max(case.nodes)
    return described.expected.memory_bytes * ranks <= 0.9 * machine.memory_gib * 2**30


Obstacle = tuple[Status, Reason, str]


def _unmeasured(run: RunRecord, plan: Plan) -> tuple[Status, Reason]:
    """Never green: a bug in a complete run, open in one that was stopped or ran out of time."""
    if plan.hash in run.out_of_time:
        return Status.INCONCLUSIVE, Reason.OUT_OF_TIME
    if run.complete:
        return Status.ERROR, Reason.NOT_MEASURED
    return Status.INCONCLUSIVE, Reason.INTERRUPTED


def _obstacle(run: RunRecord, plan: Plan, contrast: Contrast) -> Obstacle | None:
    """Why this contrast may not be judged by its speed, if so."""
    arms = [plan.arm(n) for n in (contrast.subject, *contrast.baseline)]
    for arm in arms:
        described = run.described.get(arm.case.hash)
        if described is None:
            return *_unmeasured(run, plan), f"{arm.case.id} was not measured"
        if described.error:
            return Status.ERROR, Reason.LAUNCH_FAILED, f"{arm.case.id}: {described.error}"
        if described.unsupported:
            return Status.SKIP, Reason.UNSUPPORTED, f"{arm.case.id}: {described.unsupported}"
        if not fits(described, arm.case, run.machine):
            return Status.SKIP, Reason.DOES_NOT_FIT, f"{arm.case.id} does not fit here"
    if contrast.against == "smallest_fit" and contrast.baseline[0] != smallest_fit(run, plan):
        return Status.SKIP, Reason.UNSUPPORTED, f"the smallest fit is {smallest_fit(run, plan)}"
    checked = gates(run)
    for arm in arms:
        gate = checked.get(arm.case.hash)
        if arm.role is Role.CONTROL:
            return _control(gate)
        if arm.role is Role.ABLATION:
            continue  # wrong on purpose
        if gate is None and (lower := _stopped_at(run, plan, arm.case, checked)) is not None:
            why = f"{arm.case.id} was not launched: the climb stopped at {lower}"
            return Status.SKIP, Reason.CLIMB_STOPPED, why
        if gate is None:
            return *_unmeasured(run, plan), f"{arm.case.id} was never checked"
        if (failure := gate_failure(gate)) is not None:
            reason = Reason.LAUNCH_FAILED if gate.cause else Reason.INCORRECT
            if failure.startswith("bytes."):
                reason = Reason.WRONG_BYTES
            whose = "" if arm.name == contrast.subject else f"{arm.case.id}: "
            return Status.ERROR, reason, f"{whose}{failure}"
    if (mismatch := _norms(plan, contrast, checked)) is not None:
        return Status.ERROR, Reason.INCORRECT, mismatch
    for launch in _launches(run, plan, contrast):
        if launch.status is LaunchStatus.FAILED:
            return Status.ERROR, Reason.LAUNCH_FAILED, blame(launch)
        if launch.wrong:
            return Status.ERROR, Reason.WRONG_WORLD, f"{launch.launch}: {launch.wrong[0]}"
    return None


def _launches(run: RunRecord, plan: Plan, contrast: Contrast) -> list[LaunchRecord]:
    """What a contrast rests on: its arms' pilots (shared between plans) and timed launches."""
    names = {contrast.subject, *contrast.baseline}
    cases = {plan.arm(n).case.hash for n in names}
    pilots = [x for x in run.launches if x.purpose is Purpose.PILOT and x.case in cases]
    own = timed(run, plan, None, contrasts.purpose_of(contrast.metric))
    return [*pilots, *(x for x in own if x.arm in names)]


def _stopped_at(
    run: RunRecord, plan: Plan, case: CaseSpec, checked: Mapping[str, LaunchRecord]
) -> str | None:
    """The id of the lower rung that ended the climb before this case, if one did."""
    for arm in plan.arms:
        gate = checked.get(arm.case.hash)
        below = arm.case.world_size < case.world_size and arm.case.strategy == case.strategy
        if below and gate is not None and gate_failure(gate) is not None:
            return arm.case.id
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
    steps = f", step {cause.step}" if cause.phase in ("warmup", "steady") else ""
    facts = [f"in {cause.phase}{steps}"] if cause.phase else []
    facts += [f"node {cause.node}"] if cause.node else []
    facts.append("sure of the rank" if cause.sure else "not sure of the rank")
    if cause.victims:
        few = len(cause.victims) <= 8
        facts.append(
            f"victims {', '.join(map(str, cause.victims))}"
            if few
            else f"{len(cause.victims)} victims"
        )
    facts.append(f"log launches/{launch.launch}/rank{cause.rank}.log")
    return f"rank {cause.rank}: {cause.message} ({'; '.join(facts)})"


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
    ablation = plan.arm(contrast.subject).role is Role.ABLATION
    if subject.mode is not Mode.STRONG or subject.compressor or ablation:
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
