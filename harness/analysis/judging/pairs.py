"""Pairs of launches, and the scaling points made of them. Pure functions of the record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.judging.judge import estimate
from harness.base import stats
from harness.host.machine import peak_flops
from harness.record import LaunchRecord, LaunchStatus, Purpose, RunRecord
from harness.record.budget import EXPOSED, Budget, Term
from harness.record.outcome import ScalingPoint
from harness.spec import CaseSpec, Contrast, Device, Mode, Plan, Precision, Role, metrics
from harness.spec.metrics import Form
from harness.spec.rules import Statistic, Threshold


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """One value per turn: a ratio of the subject's launch to its baseline's, or its own value.

    Nothing is ever dropped: a turn whose launches did not all end well makes the contrast an
    error, in ``verdicts``.
    """

    values: tuple[float, ...]
    launches: tuple[str, ...]


def timed(
    run: RunRecord, plan: Plan, attempt: int | None = 0, purpose: Purpose = Purpose.TIMED
) -> list[LaunchRecord]:
    """The plan's timed (or other) launches, in the order they were measured.

    Attempt 0 is the measurement, 1 the set that confirms a FAIL; None is both.
    """
    return [
        x
        for x in run.launches
        if x.plan == plan.hash and x.purpose is purpose and attempt in (None, x.attempt)
    ]


def purpose_of(metric: str) -> Purpose:
    """Which launches a metric is read from."""
    return Purpose.PROFILE if metrics.profiled(metric) else Purpose.TIMED


def usable(launch: LaunchRecord) -> bool:
    """Whether a launch ended well and ran what was asked."""
    return launch.status is LaunchStatus.OK and not launch.wrong


def quantity(
    launch: LaunchRecord, name: str, statistic: Statistic = Statistic.MEAN
) -> float | None:
    """A launch's value of a quantity, in SI units; None where it was not measured.

    Throughput = samples really consumed / wall time of the kept window, over all ranks (the
    slowest rank's window); with p95, consumed per step / 95th percentile of step time.
    """
    above, slash, below = name.partition("/")
    if slash:
        top, bottom = (quantity(launch, part, statistic) for part in (above, below))
        return None if top is None or not bottom else top / bottom
    if name in metrics.PROFILED:
        return None if launch.budget is None else share(launch.budget, name)
    if launch.steps is None:
        return None
    p95 = statistic is Statistic.P95
    if name == "throughput":
        if p95:
            return launch.consumed / launch.steps.count / launch.steps.p95_s
        return launch.consumed / max(r.window_s for r in launch.ranks)
    if name == "step_s":
        return launch.steps.p95_s if p95 else launch.steps.mean_s
    if name == "median_step_s":
        return launch.steps.median_s
    if name == "peak_bytes":
        peaks = [r.peak_bytes for r in launch.ranks]
        return None if None in peaks else float(max(p for p in peaks if p is not None))
    if name == "sent_bytes":
        sent = [r.sent_bytes for r in launch.ranks if r.sent_bytes is not None]
        return max(sent) / launch.steps.count if len(sent) == len(launch.ranks) else None
    return None


def share(budget: Budget, name: str) -> float | None:
    """A quantity of a budget: shares of a mean step over all ranks, or max over mean compute.

    None where it was not measured: waits of communication that could not be divided are not 0.
    """
    if name == "stage_imbalance":
        return budget.imbalance if budget.total_ns(Term.COMPUTE) else None
    if name == "comm_share":
        return budget.comm_share
    terms = {
        "exposed_comm_share": EXPOSED,
        "wait_share": (Term.WAIT,),
        "bubble_share": (Term.BUBBLE,),
        "data_share": (Term.DATA,),
        "host_idle_share": (Term.IDLE,),
    }[name]
    if terms is not EXPOSED and any(t not in r.terms for r in budget.ranks for t in terms):
        return None
    return budget.mean_ns(*terms) / budget.step_ns


def budgets(run: RunRecord, case: CaseSpec) -> list[LaunchRecord]:
    """The profiled launches of a case, whichever plan they were made for."""
    return [x for x in run.launches if x.case == case.hash and x.budget is not None and usable(x)]


def ideal(run: RunRecord, plan: Plan, contrast: Contrast) -> float:
    """The ratio that perfect scaling gives; the schedule's own best for efficiency_of_ideal."""
    if contrast.metric != "efficiency_of_ideal":
        return contrast.ideal
    expected = run.described[plan.arm(contrast.subject).case.hash].expected
    return contrast.ideal * (expected.ideal_efficiency if expected else 1.0)


def pairs(
    run: RunRecord,
    plan: Plan,
    contrast: Contrast,
    statistic: Statistic = Statistic.MEAN,
    attempt: int = 0,
) -> Pairs:
    """The contrast's values over all turns that measured its arms.

    Empty as soon as one launch of these arms failed, ran something else than was asked, or lacks
    the quantity: a mean over the others would hide it.
    """
    metric = metrics.metric(contrast.metric)
    names_of_arms = {contrast.subject, *contrast.baseline}
    by_turn: dict[int, dict[str, LaunchRecord]] = {}
    for launch in timed(run, plan, attempt, purpose_of(contrast.metric)):
        if launch.arm in names_of_arms:
            if not usable(launch):
                return Pairs(values=(), launches=())
            by_turn.setdefault(launch.turn, {})[launch.arm] = launch
    values, names = [], []
    for turn in sorted(by_turn):
        arms = by_turn[turn]
        if contrast.subject not in arms or any(b not in arms for b in contrast.baseline):
            continue
        subject = quantity(arms[contrast.subject], metric.quantity, statistic)
        below = [quantity(arms[b], metric.quantity, statistic) for b in contrast.baseline]
        base = math.fsum(b or 0.0 for b in below)
        ratio = metric.form is not Form.ABSOLUTE
        if subject is None or None in below or (ratio and (base <= 0 or subject <= 0)):
            return Pairs(values=(), launches=())
        values.append(subject / base / ideal(run, plan, contrast) if ratio else subject)
        names += [arms[a].launch for a in (contrast.subject, *contrast.baseline)]
    return Pairs(values=tuple(values), launches=tuple(dict.fromkeys(names)))


def like_launches_sd(launches: Sequence[LaunchRecord]) -> float | None:
    """Relative deviation between launches of one arm in one block: an A/A probe that costs nothing.

    From the median of their differences, so that one bad launch does not condemn a host; None
    without a pair. Two like pilots count as a block.
    """
    like: dict[tuple[str, Purpose, int, int], list[float]] = {}
    for x in launches:
        if (rate := quantity(x, "throughput")) is not None and rate > 0:
            like.setdefault((x.case, x.purpose, x.attempt, x.block), []).append(math.log(rate))
    off = [abs(v[0] - v[1]) for v in like.values() if len(v) > 1]
    # |N(0, 2 sd^2)| has its median at 0.6745 sqrt(2) sd
    return stats.median(off) / (0.6745 * math.sqrt(2)) if off else None


def absolute(metric: str, arm: str) -> Contrast:
    """An arm's own value of a metric."""
    name = f"{metric}{'' if arm.startswith('@') else '@'}{arm}"
    return Contrast(name=name, metric=metric, subject=arm, baseline=(), against="nothing")


def of(plan: Plan, thresholds: Sequence[Threshold], hardware: str) -> tuple[Contrast, ...]:
    """What is judged of a plan: its contrasts, and what absolute rules ask of its subjects.

    A rule on memory, bytes or a rate needs no baseline, so a recipe need not foresee it.
    """
    out = list(plan.contrasts)
    for rule in thresholds:
        if metrics.metric(rule.metric).form is not Form.ABSOLUTE or metrics.apart(rule.metric):
            continue
        for arm in plan.arms:
            found = absolute(rule.metric, arm.name)
            alone = arm.case.world_size == 1 and "sent_bytes" in rule.metric  # nothing to send
            wanted = arm.role is Role.SUBJECT and rule.matches(arm.case, found, hardware)
            wanted = wanted and not alone
            if wanted and found not in out:
                out.append(found)
    return tuple(out)


def throughput(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Geometric mean of an arm's throughput over its launches, samples/s."""
    own = [x for x in timed(run, plan) if x.arm == arm]
    if not all(usable(x) for x in own):
        return None
    values = [q for x in own if (q := quantity(x, "throughput")) is not None]
    return geometric_mean(values)


def geometric_mean(values: Sequence[float]) -> float | None:
    """The mean of rates and ratios; None of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def reference(plan: Plan) -> str:
    """The kind of baseline that a plan's ladder is shown against: plain where it is measured."""
    kinds = [c.against for c in plan.contrasts if c.metric in ("efficiency", "speedup")]
    return "plain" if "plain" in kinds or not kinds else kinds[0]


def points(run: RunRecord, plan: Plan, against: str | None = None) -> list[ScalingPoint]:
    """Every rung of a plan's ladder against one kind of baseline (default: ``reference``)."""
    against = against or reference(plan)
    out: list[ScalingPoint] = []
    for contrast in plan.contrasts:
        if contrast.metric not in ("efficiency", "speedup") or contrast.against != against:
            continue
        case = plan.arm(contrast.subject).case
        found = pairs(run, plan, contrast).values
        rate = throughput(run, plan, contrast.subject)
        if not found or rate is None or any(p.case == case.id for p in out):
            continue
        # Ranks of the subject for each rank of the baseline: what linear scaling would give.
        base = case.world_size / sum(plan.arm(b).case.world_size for b in contrast.baseline)
        scale = contrast.ideal / base
        e = estimate([v * scale for v in found], Form.RATIO)
        tail = geometric_mean(pairs(run, plan, contrast, Statistic.P95).values)
        strong = case.mode is Mode.STRONG  # the formula is about fixed work
        serial = stats.karp_flatt(e.value * base, base) if strong else None
        out.append(
            ScalingPoint(
                case=case.id,
                world_size=case.world_size,
                against=against,
                n=e.n,
                throughput=rate,
                speedup=e.value * base,
                speedup_low=None if e.low is None else e.low * base,
                speedup_high=None if e.high is None else e.high * base,
                efficiency=e.value,
                efficiency_low=e.low,
                efficiency_high=e.high,
                p95=None if tail is None else tail * scale,
                worst=min(found) * scale,
                karp_flatt=serial,
            )
        )
    return out


def flops(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """FLOP/s per rank: throughput x closed-form FLOPs of a sample / ranks; None if unknown."""
    case = plan.arm(arm).case
    described, seen = run.described.get(case.hash), throughput(run, plan, arm)
    if described is None or described.facts is None or seen is None:
        return None
    return seen * described.facts.flops_per_sample / case.world_size or None


def peak(run: RunRecord, case: CaseSpec) -> float | None:
    """Peak FLOP/s of one of the case's devices; None where we do not know it."""
    if run.machine.gpu is None or case.device is Device.CPU:
        return None
    narrow = case.precision is not Precision.FP32
    return peak_flops(run.machine.gpu, "bfloat16" if narrow else "float32")


def mfu(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Model FLOPs utilisation: achieved over peak; None for a device without a known peak."""
    achieved, most = flops(run, plan, arm), peak(run, plan.arm(arm).case)
    return None if achieved is None or most is None else achieved / most


def gates(run: RunRecord) -> Mapping[str, LaunchRecord]:
    """Case hash -> its gate launch."""
    return {x.case: x for x in run.launches if x.purpose is Purpose.GATE}


def rests_on(run: RunRecord, plan: Plan, contrast: Contrast) -> list[LaunchRecord]:
    """What a contrast rests on: its arms' pilots (shared between plans) and timed launches."""
    names = {contrast.subject, *contrast.baseline}
    cases = {plan.arm(n).case.hash for n in names}
    pilots = [x for x in run.launches if x.purpose is Purpose.PILOT and x.case in cases]
    own = timed(run, plan, None, purpose_of(contrast.metric))
    return [*pilots, *(x for x in own if x.arm in names)]
