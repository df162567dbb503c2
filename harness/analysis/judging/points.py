"""Scaling points: throughput, speedup, efficiency and attainment of each world size."""

import math
from statistics import geometric_mean, median

from harness.analysis.judging.contrast_data import ideal, pairs, timed, values_of
from harness.analysis.judging.judge import estimate
from harness.analysis.roofline import mfu_of
from harness.base import stats
from harness.cases import CaseSpec, Contrast, Device, Form, Metric, Mode, Plan, Statistic
from harness.cases.metrics import Factor, metric
from harness.host.devices import peaks
from harness.record import Expected, LaunchRecord, Purpose, RunRecord, ScalingPoint
from harness.record.fabric import swept

#: What is lacking where a factor is unknown.
NEEDED = {
    Factor.TOKENS: "the tokens of a sample, which this model or script does not state",
    Factor.MODEL_FLOPS: "the FLOPs of a sample, which this model or script does not state",
    Factor.HARDWARE_FLOPS: "the FLOPs that are computed again, which could not be counted",
    Factor.DEVICES: "a device for each rank: these share one",
    Factor.PEAK: "a device whose peak in this precision is known (harness/host/devices.toml)",
}


def figure(
    run: RunRecord, case: CaseSpec, launch: LaunchRecord, metric: Metric, *, tail: bool = False
) -> float | None:
    """The value of a metric in a launch of this case, in SI units; None where a part is unknown."""
    reading = launch.value(metric, tail=tail)
    times = [factor(run, case, name) for name in metric.times]
    over = [factor(run, case, name) for name in metric.over]
    if reading is None or None in times or not all(over):
        return None
    return reading * math.prod(map(float, filter(None, times))) / math.prod(filter(None, over))


def factor(run: RunRecord, case: CaseSpec, name: Factor) -> float | None:
    """A fact of a case or of its device; None where it is unknown.

    Model FLOPs count each operation of forward and backward once, hardware FLOPs also what is
    computed again (A. Chowdhery et al., "PaLM", JMLR 24, 2023, appendix B). Samples that are no
    sequences have no tokens, cores and parts of a GPU no peak.
    """
    if name is Factor.DEVICES:
        return None if run.settings.shared_gpu else float(case.world_size)
    if name is Factor.PEAK:
        part = run.machine.mig  # its name is that of the whole GPU
        return None if part or case.device is Device.CPU else peaks(run.machine.gpu).get(case.dtype)
    described = run.described.get(case.hash)
    if described is None or described.facts is None:
        return None
    facts = described.facts
    if name is Factor.TOKENS:
        return float(facts.tokens_per_sample) if facts.tokens_per_sample > 1 else None
    if name is Factor.MODEL_FLOPS:
        return facts.flops_per_sample or None
    again = facts.again_flops_per_sample
    return None if again is None else facts.flops_per_sample + again or None


def budgets(run: RunRecord, case: CaseSpec) -> list[LaunchRecord]:
    """The profiled launches of a case, whichever plan they were made for."""
    return [
        launch
        for launch in run.by_case.get(case.hash, ())
        if launch.budget is not None and launch.usable
    ]


def throughput(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Geometric mean of an arm's throughput over its launches, samples/s."""
    launches = [launch for launch in timed(run, plan) if launch.arm == arm]
    rates = values_of(launches, "throughput")
    return geometric_mean(rates) if rates and all(launch.usable for launch in launches) else None


def tabled(plan: Plan) -> list[Contrast]:
    """The contrasts that its ladder's table shows."""
    return [contrast for contrast in plan.contrasts if metric(contrast.metric).tabled]


def piloted(run: RunRecord, plan: Plan, contrast: Contrast) -> float | None:
    """A contrast's ratio by its pilots alone: a hint from a launch or two, no measurement."""
    metric_ = metric(contrast.metric)
    if metric_.form is not Form.RATIO or not contrast.baseline:
        return None
    rates = []
    for name in (contrast.subject, *contrast.baseline):
        case = plan.arm(name).case
        read = (
            figure(run, case, launch, metric_)
            for launch in run.pilots_of({case.hash})
            if launch.usable
        )
        values = [value for value in read if value is not None]
        if not values:
            return None
        rates.append(geometric_mean(values))
    perfect = ideal(run, plan, contrast)
    return None if perfect is None else rates[0] / sum(rates[1:]) / perfect


def shown_against(plan: Plan) -> str:
    """The kind of baseline that a plan's ladder is shown against: plain where it is measured."""
    kinds = [contrast.against for contrast in tabled(plan)]
    return "plain" if "plain" in kinds or not kinds else kinds[0]


def points(run: RunRecord, plan: Plan, against: str | None = None) -> list[ScalingPoint]:
    """Every rung of a plan's ladder against one kind of baseline (default: ``shown_against``)."""
    kind = against or shown_against(plan)
    return [*run.once(("points", plan.hash, kind), lambda: _points(run, plan, kind))]


def _points(run: RunRecord, plan: Plan, against: str) -> list[ScalingPoint]:
    by_name: dict[str, ScalingPoint] = {}
    for contrast in tabled(plan):
        case = plan.arm(contrast.subject).case
        if contrast.against != against or case.id in by_name:
            continue
        values = pairs(run, plan, contrast).values
        rate = throughput(run, plan, contrast.subject)
        if not values or rate is None:
            continue
        # Ranks of the subject for each rank of the baseline: what linear scaling would give.
        base = case.world_size / sum(plan.arm(b).case.world_size for b in contrast.baseline)
        scale = contrast.ideal / base
        estimated = estimate([v * scale for v in values], Form.RATIO)
        tails = pairs(run, plan, contrast, Statistic.P95).values
        strong = case.mode is Mode.STRONG  # the formula is about fixed work
        by_name[case.id] = ScalingPoint(
            case=case.id,
            world_size=case.world_size,
            against=against,
            n=estimated.n,
            throughput=rate,
            speedup=estimated.value * base,
            speedup_low=None if estimated.low is None else estimated.low * base,
            speedup_high=None if estimated.high is None else estimated.high * base,
            efficiency=estimated.value,
            efficiency_low=estimated.low,
            efficiency_high=estimated.high,
            p95=geometric_mean(tails) * scale if tails else None,
            worst=min(values) * scale,
            karp_flatt=stats.karp_flatt(estimated.value * base, base) if strong else None,
        )
    return list(by_name.values())


def flops(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """FLOP/s per rank: throughput x closed-form FLOPs of a sample / ranks; None if unknown."""
    case = plan.arm(arm).case
    of_sample = factor(run, case, Factor.MODEL_FLOPS)
    rate = throughput(run, plan, arm)
    return rate * of_sample / case.world_size if rate is not None and of_sample else None


def roofline_mfu(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """The value that ``mfu`` would have by the roofline of the device; None where no sheet says."""
    case = plan.arm(arm).case
    described = run.described.get(case.hash)
    if described is None or run.machine.mig or case.device is Device.CPU:
        return None
    return mfu_of(described, case, run.machine.gpu)


def mfu(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Model FLOPs utilisation: achieved over peak; None for a device without a known peak."""
    achieved = flops(run, plan, arm)
    peak = factor(run, plan.arm(arm).case, Factor.PEAK)
    return achieved / peak if achieved is not None and peak else None


#: Share of a step behind which an all-reduce of gradients can be hidden: the backward pass is two
#: thirds of it, and the last bucket is ready only at its end.
HIDDEN = 0.6
#: The same for sharded weights, which are also gathered during the forward pass.
HIDDEN_SHARDED = 0.9
#: The operation whose bus bandwidth stands for a world's.
OPERATION = "all_reduce"


def allowed(run: RunRecord, plan: Plan, contrast: Contrast) -> float | None:
    """The largest efficiency that this run's fabric and baseline allow, at most 1.

    None if no sweep measured the fabric of this world, or if the baseline is not one device.
    """
    case = plan.arm(contrast.subject).case
    base = plan.arm(contrast.baseline[0]).case
    expected, alone = (run.described[c.hash].expected for c in (case, base))
    rate = bus_bps(run, case)
    steps = [
        launch.steps.mean_s
        for launch in run.by_plan.get(plan.hash, ())
        if _measured(launch) and launch.arm == contrast.baseline[0] and launch.steps
    ]
    if base.world_size > 1 or expected is None or alone is None or not rate or not steps:
        return None
    step_s = median(steps) * expected.global_batch / alone.global_batch / case.world_size
    exchange_s = max(expected.sent_bytes, default=0.0) / rate
    exposed_s = max(0.0, exchange_s - _hidden(expected) * step_s)
    return step_s / (step_s + exposed_s)


def _measured(launch: LaunchRecord) -> bool:
    return launch.purpose is Purpose.TIMED and launch.usable and not launch.attempt


def _hidden(expected: Expected) -> float:
    sharded = any("Shard" in placed for placed in expected.placements)
    return HIDDEN_SHARDED if sharded else HIDDEN


def bus_bps(run: RunRecord, case: CaseSpec) -> float | None:
    """The bus bandwidth of the ranks of a case by this run's sweeps, B/s; that of the largest world
    on as many nodes if its own world was not swept.
    """
    of_nodes = [
        sweep
        for sweep in swept(run.fabric, attempt=0)
        if sweep.operation == OPERATION and len(sweep.nodes) == len(case.nodes) and sweep.bus_bps()
    ]
    same_world = [sweep for sweep in of_nodes if sweep.nodes == case.nodes]
    chosen = max(same_world or of_nodes, key=lambda sweep: sum(sweep.nodes), default=None)
    return None if chosen is None else median(chosen.bus_bps())
