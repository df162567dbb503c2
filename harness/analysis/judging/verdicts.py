"""All verdicts of a record, recomputed from it: offline, without torch."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis.judging import places, sequential, work
from harness.analysis.judging.attained import bus_bps
from harness.analysis.judging.claimed import claimed
from harness.analysis.judging.conclusion import conclude
from harness.analysis.judging.doubts import doubt, unquiet
from harness.analysis.judging.evidence import ContrastData
from harness.analysis.judging.figures import NEEDED, factor
from harness.analysis.judging.obstacles import obstacle, unmeasured
from harness.analysis.judging.pairs import judged_of, pairs, timed
from harness.analysis.judging.points import mfu, roofline_mfu
from harness.analysis.judging.question import Conclusion, Question
from harness.analysis.judging.series import series
from harness.analysis.judging.standard import ALPHA
from harness.analysis.judging.tilts import tilts
from harness.analysis.judging.work import ADAMW_BYTES, MEMORY_BYTES
from harness.cases import CaseSpec, Contrast, Form, Plan, Statistic, Threshold, metrics
from harness.host.machine import Machine
from harness.record import Purpose, Reason, RunRecord, Status, Verdict


def rules_for(
    thresholds: Sequence[Threshold], case: CaseSpec, contrast: Contrast, machine: Machine
) -> list[Threshold]:
    """Every rule that judges a contrast: all are judged, none wins silently."""
    return [rule for rule in thresholds if rule.matches(case, contrast, machine)]


def verdicts(run: RunRecord) -> tuple[Verdict, ...]:
    """Every verdict of a record: what was measured beside plans first."""
    return (*of_series(run), *(verdict for plan in run.plans for verdict in of_plan(run, plan)))


def of_series(run: RunRecord) -> tuple[Verdict, ...]:
    """The verdicts on sweeps and trials."""
    return tuple(
        conclude(question, rule, run) for s in series(run) for question, rule in s.questions(run)
    )


def of_plan(run: RunRecord, plan: Plan) -> list[Verdict]:
    """The verdicts of a plan, contrast by contrast.

    Those of the curve are judged by the rules only if a contrast of their metric fails.
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
    """All that bears on one contrast under one rule, read from the record once."""
    evidence = ContrastData.of(run, plan, contrast)
    case = evidence.subject
    bare = Question(
        name=contrast.name,
        case=case.id,
        case_hash=case.hash,
        plan=plan.hash,
        metric=contrast.metric,
        against=contrast.against,
        obstacle=obstacle(evidence),
    )
    if bare.obstacle is not None:
        return bare
    statistic = rule.statistic if rule else Statistic.MEAN
    first, again = (pairs(run, plan, contrast, statistic, attempt) for attempt in (0, 1))
    if not first.values:
        return replace(bare, obstacle=_no_pairs(run, plan, contrast))
    used = mfu(run, plan, contrast.subject)
    possible = max(1.0, roofline_mfu(run, plan, contrast.subject) or 0.0)
    return replace(
        bare,
        first=first.values,
        again=again.values,
        p95=pairs(run, plan, contrast, Statistic.P95).values,
        launches=(*first.launches, *again.launches),
        horizon=2 * plan.protocol.max_blocks,
        doubt=doubt(evidence),
        tilts=tilts(evidence),
        unquiet=unquiet(evidence),
        claimed=claimed(evidence),
        place=places.kept(evidence),
        perfect=_perfect(evidence),
        gain=_gain(evidence),
        impossible=f"{used:.2f} of the device's peak FLOP/s is impossible"
        if used is not None and used > possible
        else work.excess(evidence),
    )


def _no_pairs(run: RunRecord, plan: Plan, contrast: Contrast) -> Conclusion:
    """Why there is nothing to judge although nothing failed."""
    if metrics.metric(contrast.metric).of_loss:
        steps = plan.protocol.steps
        reason = f"no launch came within {plan.to_loss} nats of the data's floor in {steps} steps"
        return Conclusion(Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, reason)
    if (untold := _untold(run, plan, contrast)) is not None:
        return Conclusion(Status.INCONCLUSIVE, Reason.NOT_MEASURED, untold)
    if not metrics.metric(contrast.metric).profiled:
        return unmeasured(run, plan, "no pair of launches was measured")
    reason = "this metric needs a profiled launch: none was made (--no-timeline or time budget)"
    if timed(run, plan, purpose=Purpose.PROFILE):
        reason = "the profiled launches lack this metric: see scaleproof timeline RUN"
    return Conclusion(Status.INCONCLUSIVE, Reason.OUT_OF_TIME, reason)


def _untold(run: RunRecord, plan: Plan, contrast: Contrast) -> str | None:
    """Says what no launch on this machine can tell of a figure, however many there are."""
    metric = metrics.metric(contrast.metric)
    case = plan.arm(contrast.subject).case
    if metric.of_fabric and not bus_bps(run, case):
        return f"{contrast.metric} needs a sweep of the fabric, which was not made (--no-fabric)"
    lacks = [name for name in (*metric.times, *metric.over) if not factor(run, case, name)]
    if lacks:
        return f"{contrast.metric} needs {NEEDED[lacks[0]]}"
    launches = [x for x in timed(run, plan) if x.arm == contrast.subject and x.usable]
    if launches and metric.of_device and all(launch.value(metric) is None for launch in launches):
        return f"nothing on this machine tells {contrast.metric}"
    return None


def _perfect(evidence: ContrastData) -> float | None:
    """The value of a throughput's ratio under perfect scaling; None for all other metrics.

    Two cases side by side scale nothing: a codec on a slow link, or a newer torch, may well be
    twice as fast.
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
    """By how much a subject may truly beat linear scaling: ranks that share out the optimizer do
    less of it than the baseline.

    AdamW moves 28 B of every parameter (weight, gradient and two moments read, three written); of
    a baseline's step it takes half at most.
    """
    case = evidence.subject
    described = evidence.run.described[case.hash]
    expected, facts = described.expected, described.facts
    sharded = expected is not None and (
        expected.stages > 1 or any("Shard" in placed for placed in expected.placements)
    )
    below = evidence.timed_of(evidence.contrast.baseline)
    steps = [launch.steps.mean_s for launch in below if launch.steps and not launch.attempt]
    if not sharded or facts is None or not steps or case.world_size < 2:
        return 1.0
    optimizer_s = ADAMW_BYTES * facts.num_params / MEMORY_BYTES[case.device]
    saved = min(0.5, optimizer_s / fmean(steps)) * (1 - 1 / case.world_size)
    return 1 / (1 - saved)


def undecided(run: RunRecord, plan: Plan) -> list[Verdict]:
    """Verdicts of a plan that more blocks, or a probe of what neighbours take, could decide."""
    judged = of_plan(run, plan)
    helped = [
        verdict
        for verdict in judged
        if verdict.more is not None or verdict.reason is Reason.NEIGHBOURS
    ]
    return [verdict for verdict in helped if verdict.status is Status.INCONCLUSIVE]


def unconfirmed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """FAILs that no fresh set has confirmed yet."""
    return [
        verdict for verdict in verdicts if verdict.reason in (Reason.UNCONFIRMED, Reason.DISAGREE)
    ]


def together(all_verdicts: Sequence[Verdict]) -> tuple[int, int]:
    """How many PASSes, and FAILs, hold together at a false discovery rate of 5 % (e-BH).

    Each verdict alone errs at most one time in twenty; with dozens of them some would.
    """
    judged = [
        verdict
        for verdict in all_verdicts
        if verdict.rule and verdict.value is not None and verdict.status is not Status.ERROR
    ]
    counts = []
    for status in (Status.PASS, Status.FAIL):
        evidence = [
            (verdict.evidence or 0.0) if verdict.status is status else 0.0 for verdict in judged
        ]
        counts.append(len(sequential.discoveries(evidence, ALPHA / 2)))
    return counts[0], counts[1]
