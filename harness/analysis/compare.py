"""Compare two runs, A and B, on the cases that both ran, with an interval for each ratio.

values of launches by case -> Welch's t on logarithms -> Compared -> Comparison
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import geometric_mean

from harness.analysis.judging import biases
from harness.analysis.judging.contrast_data import timed
from harness.analysis.judging.fingerprint import between, fingerprint
from harness.analysis.judging.points import budgets, points
from harness.base import stats
from harness.base.documents import Json, fields_of
from harness.base.errors import Exit, SpecError
from harness.cases import CaseSpec
from harness.cases.metrics import COMPARABLE, METRICS
from harness.host.environment import is_digest
from harness.record import Purpose, RunRecord, Term
from harness.record.budget import EXPOSED

#: A difference counts as a change only if its whole interval lies beyond this relative difference.
#: The launches of two runs are not interleaved, so the intervals do not include the drift of the
#: machine between the runs.
DRIFT = 0.03
#: Two-sided error probability of the intervals. They are evaluated only once.
ALPHA = 0.05


class Reading(StrEnum):
    """The interpretation of an interval of the ratio B / A.

    "no change" means that the whole interval lies within ``DRIFT`` of 1.
    """

    FASTER = "B better"
    SLOWER = "B worse"
    SAME = "~ no change"
    UNDECIDED = "undecided"
    TOO_FEW = "too few launches"
    ONLY_A = "A only"
    ONLY_B = "B only"


def gate(readings: Collection[Reading]) -> Exit:
    """Return the exit status for ``--fail-on worse``.

    If B lacks a case of A, it is INCONCLUSIVE, because that case may be worse.
    """
    if Reading.SLOWER in readings:
        return Exit.FAILED
    return Exit.INCONCLUSIVE if Reading.ONLY_A in readings else Exit.PASSED


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One case in both runs.

    ``ratio`` is B / A. It has a 95 % interval if each run has at least two launches of the case.
    ``taken`` holds the largest share of time that other processes can have taken, one value for A
    and one for B. The interval is widened to contain the ratio without these processes.
    """

    case: CaseSpec
    metric: str
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    efficiency_a: float | None
    efficiency_b: float | None
    reading: Reading
    taken: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The change of a case's mean step from A to B in ns, in total and by term."""

    case: str
    before_ns: float
    after_ns: float
    terms_ns: Mapping[Term, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two runs.

    ``rows`` compares each case, and ``mean`` is the geometric mean of the ratios of the cases that
    both runs have. ``differs`` lists differences between the settings of the runs. ``forced`` lists
    the differences that normally prevent a comparison. ``not_compared`` lists omitted cases.
    ``others`` compares the cases on the other metrics. ``shifts`` lists how the times of terms,
    such as compute and waiting, changed.
    """

    metric: str
    rows: tuple[Compared, ...]
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    differs: tuple[str, ...]
    not_compared: tuple[str, ...]
    forced: tuple[str, ...] = ()
    others: tuple[Compared, ...] = ()
    shifts: tuple[Shift, ...] = ()


def compare(a: RunRecord, b: RunRecord, metric: str, *, force: bool = False) -> Comparison:
    """Compare two runs on one metric.

    Raise SpecError if their fingerprints differ, unless ``force`` is set.
    """
    unlike = between(fingerprint(a), fingerprint(b))
    if unlike and not force:
        raise SpecError(
            "the runs are not comparable: " + "; ".join(unlike),
            expected="two runs with the same fingerprint, or --force (marks the result)",
            fix="scaleproof compare machines RUN_A RUN_B",
        )
    others = [side_by_side(a, b, m, hardware=False).rows for m in COMPARABLE if m != metric]
    return replace(
        side_by_side(a, b, metric, hardware=False),
        forced=tuple(unlike),
        others=tuple(row for rows in others for row in rows if row.ratio is not None),
        shifts=tuple(_shifts(a, b)),
    )


def _shifts(a: RunRecord, b: RunRecord) -> Iterator[Shift]:
    """Yield, for each case that both runs profiled, how its mean step changed.

    If one run could not divide its exposed communication into terms, neither run's communication is
    divided.
    """
    for case in _cases(a):
        before = budgets(a, case)
        after = budgets(b, case)
        old = before[0].budget if before else None
        new = after[0].budget if after else None
        if old is None or new is None:
            continue
        known = [term for term in Term if old.total_ns(term) or new.total_ns(term)]
        if old.total_ns(Term.UNDIVIDED) or new.total_ns(Term.UNDIVIDED):
            known = [term for term in known if term not in EXPOSED]
            whole = {Term.UNDIVIDED: new.mean_ns(*EXPOSED) - old.mean_ns(*EXPOSED)}
        else:
            whole = {}
        yield Shift(
            case=case.id,
            before_ns=old.step_ns,
            after_ns=new.step_ns,
            terms_ns={term: new.mean_ns(term) - old.mean_ns(term) for term in known} | whole,
        )


def _cases(run: RunRecord) -> list[CaseSpec]:
    return list({arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}.values())


def key_of(case: CaseSpec, hardware: bool) -> str:
    """Return a key that is equal for cases of two runs if they can be compared.

    If different ``hardware`` is compared, the key does not depend on the device and the backend.
    """
    if not hardware:
        return case.hash
    skip = {"device", "backend"}
    return str(sorted((key, series) for key, series in case.series.items() if key not in skip))


def side_by_side(a: RunRecord, b: RunRecord, metric: str, *, hardware: bool) -> Comparison:
    """Compare every case of either run on one metric.

    If different ``hardware`` is compared, cases on simulated devices are omitted.
    """
    if metric not in COMPARABLE:
        raise SpecError(
            f"--metric {metric}", expected=", ".join(COMPARABLE), fix="--metric throughput"
        )
    values_a = _values(a, metric, hardware)
    values_b = _values(b, metric, hardware)
    efficiency_a = _efficiency(a, hardware)
    efficiency_b = _efficiency(b, hardware)
    rows = []
    not_compared = []
    for key in dict.fromkeys([*values_a, *values_b]):
        case = (values_a.get(key) or values_b[key])[0]
        if hardware and (a.stand_ins(case) or b.stand_ins(case)):
            not_compared.append(f"{case.id}: a simulated device")
            continue
        x = values_a[key][1] if key in values_a else []
        y = values_b[key][1] if key in values_b else []
        efficiencies = (efficiency_a.get(key), efficiency_b.get(key))
        taken = [
            (_taken(run, values[key][0]) or 0.0) if key in values else 0.0
            for run, values in ((a, values_a), (b, values_b))
        ]
        rows.append(_widened(_compared(case, metric, x, y, efficiencies), *taken))
    mean, mean_low, mean_high = mean_ratio(rows)
    return Comparison(
        metric=metric,
        rows=tuple(rows),
        mean=mean,
        mean_low=mean_low,
        mean_high=mean_high,
        differs=(*differing(a, b), *load_of(a, b)),
        not_compared=tuple(not_compared),
    )


def _compared(
    case: CaseSpec,
    metric: str,
    x: Sequence[float],
    y: Sequence[float],
    efficiencies: tuple[float | None, float | None],
) -> Compared:
    """Return the comparison of a case from the values of its launches; one run may have none."""
    ratio = low = high = None
    reading = Reading.ONLY_A if not y else Reading.ONLY_B
    if x and y:
        difference, radius = _welch(x, y)
        ratio = math.exp(difference)
        reading = Reading.TOO_FEW
        if radius is not None:
            low = math.exp(difference - radius)
            high = math.exp(difference + radius)
            reading = reading_of(low, high, METRICS[metric].more_is_better)
    return Compared(
        case=case,
        metric=metric,
        a=geometric_mean(x) if x else None,
        b=geometric_mean(y) if y else None,
        ratio=ratio,
        low=low,
        high=high,
        reading=reading,
        efficiency_a=efficiencies[0],
        efficiency_b=efficiencies[1],
    )


def _taken(run: RunRecord, case: CaseSpec) -> float | None:
    """Return the share of time that other processes can have taken from a case's timed launches.

    Return None if it is unknown.
    """
    launches = [
        launch
        for launch in run.by_case.get(case.hash, ())
        if launch.purpose is Purpose.TIMED and launch.usable
    ]
    if not launches:
        return 0.0
    return biases.lost_to_load(launches, run, beside=biases.around(launches))


def _widened(row: Compared, taken_a: float, taken_b: float) -> Compared:
    """Return the row with its interval widened by the possible effect of other processes.

    Other processes can have slowed down either run, but cannot have made one faster.
    """
    more = METRICS[row.metric].more_is_better
    if row.low is None or row.high is None or not METRICS[row.metric].of_time:
        return row
    widened = replace(row, taken=(taken_a, taken_b))
    low, high = (
        math.exp(math.log(x) + shift)
        for x, shift in zip((row.low, row.high), _shifts_of(widened), strict=True)
    )
    return replace(widened, low=low, high=high, reading=reading_of(low, high, more))


def _shifts_of(row: Compared) -> tuple[float, float]:
    """Return how far other processes can have moved each end of the interval.

    The interval is that of the logarithm of the ratio. The amounts depend on the shares of time
    that other processes can have taken.
    """
    of_a, of_b = (-math.log1p(-taken) for taken in row.taken)
    return (-of_a, of_b) if METRICS[row.metric].more_is_better else (-of_b, of_a)


def load_of(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """Yield a sentence if the background load is unknown, or if its effect can exceed DRIFT."""
    shares = [
        max((_taken(run, case) or 0.0 for case in _cases(run)), default=0.0) for run in (a, b)
    ]
    for name, run in (("A", a), ("B", b)):
        if any(_taken(run, case) is None for case in _cases(run)):
            yield f"load: the background load of {name}'s launches is unknown"
    if max(shares) > DRIFT:
        yield (
            f"load: other processes can have taken at most {shares[0]:.0%} of A's time and"
            f" {shares[1]:.0%} of B's, which the intervals include"
        )


def mean_ratio(rows: Iterable[Compared]) -> tuple[float | None, float | None, float | None]:
    """Return the geometric mean of the ratios and its 95 % interval.

    Cases that only one run has are ignored. The errors of cases are independent, so the squares of
    the half-widths of their intervals are added. The effect of other processes may be the same in
    all cases, so its mean is added to the result. If one of the cases has no interval, the mean has
    no interval.
    """
    both = [row for row in rows if row.ratio is not None]
    if not both:
        return None, None, None
    center = math.fsum(math.log(row.ratio) for row in both if row.ratio is not None) / len(both)
    spans = [
        (math.log(row.low), math.log(row.high), _shifts_of(row))
        for row in both
        if row.low and row.high
    ]
    if len(spans) < len(both):
        return math.exp(center), None, None
    radii = [(high - shifts[1] - low + shifts[0]) / 2 for low, high, shifts in spans]
    radius = math.hypot(*radii) / len(both)
    below = math.fsum(shifts[0] for _, _, shifts in spans) / len(both)
    above = math.fsum(shifts[1] for _, _, shifts in spans) / len(both)
    return math.exp(center), math.exp(center - radius + below), math.exp(center + radius + above)


def reading_of(low: float, high: float, more_is_better: bool) -> Reading:
    """Return the interpretation of an interval of the ratio B / A."""
    if low > 1 + DRIFT or high < 1 - DRIFT:
        return Reading.FASTER if (low > 1) is more_is_better else Reading.SLOWER
    return Reading.SAME if low >= 1 - DRIFT and high <= 1 + DRIFT else Reading.UNDECIDED


def differing(a: RunRecord, b: RunRecord) -> tuple[str, ...]:
    """Return the differences in the machine, the software, the environment and the settings."""
    skip = {"host", "kernel", "hardware_class", "key", "title"}

    def facts(run: RunRecord) -> list[Mapping[str, Json]]:
        machine = {key: value for key, value in fields_of(run.machine).items() if key not in skip}
        variables = {key: value for key, value in run.environment.items() if not is_digest(value)}
        return [machine, run.software, variables, {"engine": run.settings.engine}]

    pairs = zip(facts(a), facts(b), strict=True)
    texts = [text for pair in pairs for text in between(*pair)]
    names = sorted(a.environment.keys() | b.environment.keys())
    unknown = [
        name for name in names if _unlike_digests(a.environment.get(name), b.environment.get(name))
    ]
    return (*texts, *([f"environment: {', '.join(unknown)} differ"] if unknown else []))


def _unlike_digests(a: str | None, b: str | None) -> bool:
    """Return whether both runs have a digest of an environment variable and the digests differ."""
    return a is not None and b is not None and a != b and is_digest(a) and is_digest(b)


def _values(run: RunRecord, metric: str, hardware: bool) -> dict[str, tuple[CaseSpec, list[float]]]:
    """Return, for each key, the case and the positive values of its launches in all plans."""
    by_case: dict[str, tuple[CaseSpec, list[float]]] = {}
    for plan in run.plans:
        for arm in plan.arms:
            usable = (
                launch for launch in timed(run, plan) if launch.arm == arm.name and launch.usable
            )
            read = (launch.value(METRICS[metric]) for launch in usable)
            values = [value for value in read if value is not None and value > 0]
            if values:
                by_case.setdefault(key_of(arm.case, hardware), (arm.case, []))[1].extend(values)
    return by_case


def _efficiency(run: RunRecord, hardware: bool) -> dict[str, float]:
    by_id: dict[str, float] = {}
    for plan in run.plans:
        cases = {arm.case.id: arm.case for arm in plan.arms}
        for point in points(run, plan):
            by_id[key_of(cases[point.case], hardware)] = point.efficiency
    return by_id


def _welch(x: Sequence[float], y: Sequence[float]) -> tuple[float, float | None]:
    """Return the difference of log means, B - A, and the half-width of its 95 % interval.

    The launches of two runs are not paired, so this is Welch's t interval with Satterthwaite's
    degrees of freedom.
    """
    interval = stats.t_interval([math.log(v) for v in x], ALPHA)
    b = stats.t_interval([math.log(v) for v in y], ALPHA)
    difference = b.mean - interval.mean
    if interval.sd is None or b.sd is None:
        return difference, None
    variance_a = interval.sd**2 / interval.n
    variance_b = b.sd**2 / b.n
    variance = variance_a + variance_b
    if variance == 0:
        return difference, 0.0
    freedom = variance**2 / (variance_a**2 / (interval.n - 1) + variance_b**2 / (b.n - 1))
    quantile = stats.t_quantile(1 - ALPHA / 2, max(1, int(freedom)))
    return difference, quantile * math.sqrt(variance)
