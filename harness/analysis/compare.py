"""Two runs side by side, only over what both ran, each ratio with its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import geometric_mean

from harness.analysis.judging.fingerprint import between, fingerprint
from harness.analysis.judging.pairs import timed
from harness.analysis.judging.points import points
from harness.base import stats
from harness.base.documents import Json, fields_of
from harness.base.errors import SpecError
from harness.record import RunRecord
from harness.spec import CaseSpec
from harness.spec.metrics import COMPARABLE, METRICS

#: Two runs are not interleaved, so what drifts from one to the other is not in the interval: a
#: difference is only called one when its whole interval lies beyond this.
DRIFT = 0.03
#: Two-sided error of the intervals here: one look, at launches that are all there.
ALPHA = 0.05


class Reading(StrEnum):
    """What an interval of B / A says; no change only if all of it lies within DRIFT."""

    FASTER = "B better"
    SLOWER = "B worse"
    SAME = "~ no change"
    UNDECIDED = "undecided"
    TOO_FEW = "too few launches"
    ONLY_A = "A only"
    ONLY_B = "B only"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One case in both runs. ``ratio`` is B / A, with its 95 % interval where launches are two."""

    case: CaseSpec
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    efficiency_a: float | None
    efficiency_b: float | None
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rows, their geometric mean over the cases both ran, and what differs between the runs.

    ``forced`` lists the fields of the fingerprint in which they should have been alike.
    """

    metric: str
    rows: tuple[Compared, ...]
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    differs: tuple[str, ...]
    not_compared: tuple[str, ...]
    forced: tuple[str, ...] = ()


def compare_hardware(a: RunRecord, b: RunRecord, metric: str) -> Comparison:
    """Two machines on the same cases. Stand-ins are refused: they say nothing of hardware."""
    cases = [run.stand_ins(c) for run in (a, b) for c in _cases(run)]
    if cases and all(cases):
        raise SpecError(
            "both runs have only stand-ins (paced, emulated), which say nothing about hardware",
            expected="runs with real compute", fix="pytest suites/ -k 'not paced'",
        )  # fmt: skip
    return _compare(a, b, metric, hardware=True)


def compare(a: RunRecord, b: RunRecord, metric: str, *, force: bool = False) -> Comparison:
    """Two runs that are alike but for what one compares; unlike ones are refused unless forced."""
    unlike = between(fingerprint(a), fingerprint(b))
    if unlike and not force:
        raise SpecError(
            "the runs are not comparable: " + "; ".join(unlike),
            expected="two runs with the same fingerprint, or --force (marks the result)",
            fix="scaleproof compare-hardware RUN_A RUN_B",
        )
    return replace(_compare(a, b, metric, hardware=False), forced=tuple(unlike))


def _cases(run: RunRecord) -> list[CaseSpec]:
    return list({arm.case.hash: arm.case for p in run.plans for arm in p.arms}.values())


def _key(case: CaseSpec, hardware: bool) -> str:
    """Across hardware a case keeps its identity but for where it computes."""
    if not hardware:
        return case.hash
    skip = {"device", "backend"}
    return str(sorted((k, v) for k, v in case.series.items() if k not in skip))


def _compare(a: RunRecord, b: RunRecord, metric: str, *, hardware: bool) -> Comparison:
    if metric not in COMPARABLE:
        raise SpecError(
            f"--metric {metric}", expected=", ".join(COMPARABLE), fix="--metric throughput"
        )
    values_a, values_b = _values(a, metric, hardware), _values(b, metric, hardware)
    efficiency_a, efficiency_b = _efficiency(a, hardware), _efficiency(b, hardware)
    rows, logs, variances, not_compared = [], [], [], []
    for key in dict.fromkeys([*values_a, *values_b]):
        case = (values_a.get(key) or values_b[key])[0]
        if hardware and (a.stand_ins(case) or b.stand_ins(case)):
            not_compared.append(f"{case.id}: a stand-in")
            continue
        x = values_a[key][1] if key in values_a else []
        y = values_b[key][1] if key in values_b else []
        mean_a, mean_b = (geometric_mean(v) if v else None for v in (x, y))
        ratio = low = high = None
        reading = Reading.ONLY_A if not y else Reading.ONLY_B
        if x and y:
            difference, radius, variance = _welch(x, y)
            ratio, reading = math.exp(difference), Reading.TOO_FEW
            if radius is not None:
                low, high = math.exp(difference - radius), math.exp(difference + radius)
                reading = _reading(low, high, METRICS[metric].more_is_better)
            logs.append(difference)
            variances.append(math.nan if radius is None else variance)
        rows.append(
            Compared(
                case=case,
                a=mean_a,
                b=mean_b,
                ratio=ratio,
                low=low,
                high=high,
                reading=reading,
                efficiency_a=efficiency_a.get(key),
                efficiency_b=efficiency_b.get(key),
            )  # fmt: skip
        )
    mean = mean_low = mean_high = None
    if logs:
        center = math.fsum(logs) / len(logs)
        mean = math.exp(center)
        radius_mean = 1.96 * math.sqrt(math.fsum(variances)) / len(logs)
        if not math.isnan(radius_mean):  # one case without an interval: nobody knows the mean's
            mean_low, mean_high = math.exp(center - radius_mean), math.exp(center + radius_mean)
    return Comparison(
        metric=metric, rows=tuple(rows), mean=mean, mean_low=mean_low, mean_high=mean_high,
        differs=differing(a, b), not_compared=tuple(not_compared),
    )  # fmt: skip


def _reading(low: float, high: float, more_is_better: bool) -> Reading:
    """What an interval of B / A says."""
    if low > 1 + DRIFT or high < 1 - DRIFT:
        return Reading.FASTER if (low > 1) is more_is_better else Reading.SLOWER
    return Reading.SAME if low >= 1 - DRIFT and high <= 1 + DRIFT else Reading.UNDECIDED


def differing(a: RunRecord, b: RunRecord) -> tuple[str, ...]:
    """Fields of machine, software, environment and settings that are not equal."""
    skip = {"host", "kernel", "hardware_class", "key", "title"}

    def facts(run: RunRecord) -> list[Mapping[str, Json]]:
        machine = {k: v for k, v in fields_of(run.machine).items() if k not in skip}
        return [machine, run.software, run.environment, {"engine": run.settings.engine}]

    return tuple(text for pair in zip(facts(a), facts(b), strict=True) for text in between(*pair))


def _values(run: RunRecord, metric: str, hardware: bool) -> dict[str, tuple[CaseSpec, list[float]]]:
    """Key -> the case and its launches' values, over all plans that ran it."""
    out: dict[str, tuple[CaseSpec, list[float]]] = {}
    for plan in run.plans:
        for arm in plan.arms:
            usable = (x for x in timed(run, plan) if x.arm == arm.name and x.usable)
            read = (x.value(METRICS[metric]) for x in usable)
            values = [value for value in read if value is not None and value > 0]
            if values:
                out.setdefault(_key(arm.case, hardware), (arm.case, []))[1].extend(values)
    return out


def _efficiency(run: RunRecord, hardware: bool) -> dict[str, float]:
    by_id: dict[str, float] = {}
    for plan in run.plans:
        cases = {arm.case.id: arm.case for arm in plan.arms}
        for point in points(run, plan):
            by_id[_key(cases[point.case], hardware)] = point.efficiency
    return by_id


def _welch(x: Sequence[float], y: Sequence[float]) -> tuple[float, float | None, float]:
    """Difference of log means B - A, radius of its 95 % interval, its variance.

    The launches of two runs are not paired, so Welch's t with Satterthwaite's degrees of freedom.
    """
    a = stats.t_interval([math.log(v) for v in x], ALPHA)
    b = stats.t_interval([math.log(v) for v in y], ALPHA)
    difference = b.mean - a.mean
    if a.sd is None or b.sd is None:
        return difference, None, 0.0
    va, vb = a.sd**2 / a.n, b.sd**2 / b.n
    if va + vb == 0:
        return difference, 0.0, 0.0
    df = (va + vb) ** 2 / (va**2 / (a.n - 1) + vb**2 / (b.n - 1))
    return (
        difference,
        stats.t_quantile(1 - ALPHA / 2, max(1, int(df))) * math.sqrt(va + vb),
        va + vb,
    )
