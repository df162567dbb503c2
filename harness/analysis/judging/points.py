"""Scaling points: throughput, speedup, efficiency and attainment of each world size."""

from statistics import geometric_mean

from harness.analysis.judging.contrast_data import ideal, pairs, timed, values_of
from harness.analysis.judging.factors import factor, figure
from harness.analysis.judging.judge import estimate
from harness.analysis.roofline import mfu_of
from harness.base import stats
from harness.cases import CaseSpec, Contrast, Device, Form, Mode, Plan, Statistic
from harness.cases.metrics import Factor, metric
from harness.record import LaunchRecord, RunRecord, ScalingPoint


def budgets(run: RunRecord, case: CaseSpec) -> list[LaunchRecord]:
    """Return the profiled launches of a case in all plans."""
    return [
        launch
        for launch in run.by_case.get(case.hash, ())
        if launch.budget is not None and launch.usable
    ]


def throughput(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Return the geometric mean of an arm's throughput in samples/s.

    Return None if the arm was not launched or if one of its launches cannot be used.
    """
    launches = [launch for launch in timed(run, plan) if launch.arm == arm]
    rates = values_of(launches, "throughput")
    return geometric_mean(rates) if rates and all(launch.usable for launch in launches) else None


def tabled(plan: Plan) -> list[Contrast]:
    """Return the contrasts that the table of a plan's scaling sweep shows."""
    return [contrast for contrast in plan.contrasts if metric(contrast.metric).tabled]


def piloted(run: RunRecord, plan: Plan, contrast: Contrast) -> float | None:
    """Return a contrast's ratio from its calibration launches alone, or None.

    There are only one or two such launches, so the ratio is a hint and not a measurement.
    """
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
    """Return the kind of baseline against which a plan's scaling sweep is shown.

    It is plain, a single device without a wrapper, if the plan measures it.
    """
    kinds = [contrast.against for contrast in tabled(plan)]
    return "plain" if "plain" in kinds or not kinds else kinds[0]


def points(run: RunRecord, plan: Plan, against: str | None = None) -> list[ScalingPoint]:
    """Return the scaling point of every world size of a plan against one kind of baseline.

    ``against`` is the kind; its default is ``shown_against``.
    """
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
        # The ratio of the subject's ranks to the baseline's, which is the speedup of linear scaling
        base = case.world_size / sum(plan.arm(b).case.world_size for b in contrast.baseline)
        scale = contrast.ideal / base
        estimated = estimate([v * scale for v in values], Form.RATIO)
        tails = pairs(run, plan, contrast, Statistic.P95).values
        strong = case.mode is Mode.STRONG  # the Karp-Flatt metric assumes a fixed amount of work
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
    """Return the FLOP/s per rank, or None if unknown.

    It is the throughput times the closed-form FLOPs of a sample, divided by the number of ranks.
    """
    case = plan.arm(arm).case
    of_sample = factor(run, case, Factor.MODEL_FLOPS)
    rate = throughput(run, plan, arm)
    return rate * of_sample / case.world_size if rate is not None and of_sample else None


def roofline_mfu(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Return the largest ``mfu`` that the roofline of the device allows.

    Return None if the device has no data sheet.
    """
    case = plan.arm(arm).case
    described = run.described.get(case.hash)
    if described is None or run.machine.mig or case.device is Device.CPU:
        return None
    return mfu_of(described, case, run.machine.gpu)


def mfu(run: RunRecord, plan: Plan, arm: str) -> float | None:
    """Return the model FLOPs utilisation: the ratio of the achieved to the peak FLOP/s.

    Return None if either is unknown.
    """
    achieved = flops(run, plan, arm)
    peak = factor(run, plan.arm(arm).case, Factor.PEAK)
    return achieved / peak if achieved is not None and peak else None
