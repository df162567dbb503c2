"""Combine each value of a run with its verdict into a ``Result``, for all outputs.

    record -> results(run) -> tables, headline, page, JSON, CSV, frames, site, acceptance report

A ``Result`` is one metric of one case against one baseline. All outputs print results of this
module, and count them by ``tally``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from harness.analysis.judging import judge
from harness.analysis.judging.promise import MOST_PAIRS
from harness.analysis.judging.question import Caveat, Severity
from harness.analysis.judging.verdicts import is_stand_in
from harness.base.documents import Json, to_doc
from harness.cases import Form, metrics
from harness.record import Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY

#: For each reason of an inconclusive verdict, a remedy that can decide it if more pairs cannot.
REMEDIES = {
    Reason.NOISY_HOST: "a quieter host",
    Reason.NOT_STEADY: "longer windows, or a quieter host",
    Reason.NEIGHBOURS: "--one-by-one",
    Reason.OUT_OF_TIME: "more time",
    Reason.INTERRUPTED: "scaleproof run --resume",
    Reason.UNCONFIRMED: "a fresh set of launches",
    Reason.DISAGREE: "another run",
    Reason.PERTURBED: "longer steps",
}


@dataclass(frozen=True, kw_only=True)
class ResultKey:
    """The subject of a result. An output shows the fields in which its rows differ.

    ``plan`` is the hash of a plan, or empty for results of sweeps and trials. ``case`` is the id of
    a case. ``world`` is the number and kind of ranks (``2cpu``). ``baseline`` is the kind of
    baseline (``plain``, ``wrapped``, ``nothing``).
    """

    plan: str
    case: str
    world: str
    metric: str
    baseline: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A value with its 95 % confidence limits in the unit of the metric; a limit may be None."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One metric of one case against one baseline, with its verdict.

    ``measured`` is the estimate from the pairs of launches. ``judged`` is the interval that the
    judge compared with the bound, after it accounted for biases such as background load. Both are
    None if nothing was measured. ``widened`` is one word for the bias. ``counts`` is the status
    that determines the exit status. ``required`` says that a threshold judges the result and that
    the tally counts it. ``stand_in`` says that the hardware was simulated or shared. ``remedy``
    describes a measure that would decide an inconclusive verdict. ``more`` is the number of further
    pairs that would decide it. ``n`` is the number of pairs. ``mde``, ``sd``, ``lag1``, ``p95``,
    ``worst`` and ``evidence`` are the fields of ``Verdict``.
    """

    key: ResultKey
    case_hash: str
    contrast: str
    measured: Limits | None
    judged: Limits | None
    widened: str
    rule: str | None
    bound: str
    status: Status
    counts: Status
    reason: Reason
    detail: str
    caveats: tuple[Caveat, ...]
    remedy: str
    more: int | None
    n: int
    launches: tuple[str, ...]
    pairs: tuple[float, ...]
    again: tuple[float, ...]
    mde: float | None
    sd: float | None
    lag1: float | None
    p95: float | None
    worst: float | None
    evidence: float | None
    waived: bool
    simulated: bool
    stand_in: bool
    required: bool

    @property
    def plan(self) -> str:
        return self.key.plan

    @property
    def case(self) -> str:
        return self.key.case

    @property
    def metric(self) -> str:
        return self.key.metric

    @property
    def against(self) -> str:
        return self.key.baseline

    @property
    def value(self) -> float | None:
        return None if self.judged is None else self.judged.value

    @property
    def low(self) -> float | None:
        """The lower end of the judged interval."""
        return None if self.judged is None else self.judged.low

    @property
    def high(self) -> float | None:
        """The upper end of the judged interval."""
        return None if self.judged is None else self.judged.high

    @property
    def doubt(self) -> str:
        """The caveat about background load or an unfit host, or an empty string."""
        doubts = (caveat.sentence for caveat in self.caveats if caveat.code == "doubt")
        return next(doubts, "")

    @property
    def absolute(self) -> bool:
        """Whether the value has a unit. Other values are ratios to a baseline."""
        return metrics.metric(self.metric).form is Form.ABSOLUTE


def results(run: RunRecord) -> Sequence[Result]:
    """Return every result of a run, in the order of its verdicts."""
    return run.once(("results",), lambda: [result_of(run, verdict) for verdict in run.verdicts])


def results_of(run: RunRecord, plan: str) -> Sequence[Result]:
    """Return the results of one plan, given by its hash."""
    by_plan = run.once(("results", "by plan"), lambda: _grouped(run, lambda r: r.plan))
    return by_plan.get(plan, ())


def results_of_case(run: RunRecord, case_hash: str) -> Sequence[Result]:
    """Return the results of one case, given by its hash."""
    by_case = run.once(("results", "by case"), lambda: _grouped(run, lambda r: r.case_hash))
    return by_case.get(case_hash, ())


def _grouped(run: RunRecord, key: Callable[[Result], str]) -> dict[str, list[Result]]:
    """Map each key to the results that have it."""
    groups: dict[str, list[Result]] = {}
    for result in results(run):
        groups.setdefault(key(result), []).append(result)
    return groups


def ranked(run: RunRecord) -> list[Result]:
    """Return every result of a run, worst first."""
    return sorted(results(run), key=lambda result: SEVERITY.index(result.status))


def result_of(run: RunRecord, verdict: Verdict) -> Result:
    """Return the result for a verdict, which may be on a threshold that the run does not have."""
    cases = run.cases_by_hash.get(verdict.case_hash, ())
    stand_in = is_stand_in(run, verdict)
    form = metrics.metric(verdict.metric).form
    judged = measured = None
    if verdict.value is not None:
        judged = Limits(value=verdict.value, low=verdict.low, high=verdict.high)
        measured = judged
    if verdict.pairs and verdict.widened:
        estimate = judge.estimate(verdict.pairs, form)
        measured = Limits(value=estimate.value, low=estimate.low, high=estimate.high)
    counted = verdict.rule and verdict.reason is not Reason.CAUGHT and not verdict.simulated
    return Result(
        key=ResultKey(
            plan=verdict.plan,
            case=verdict.case,
            world=next((case.world for case in cases), ""),
            metric=verdict.metric,
            baseline=verdict.against,
        ),
        measured=measured,
        judged=judged,
        counts=verdict.counts,
        caveats=tuple(_caveats(verdict, stand_in=stand_in)),
        remedy=_remedy(verdict),
        stand_in=stand_in,
        required=bool(counted) and verdict.status is not Status.SKIP,
        **{name: getattr(verdict, name) for name in _COPIED},
    )


#: The fields that a result copies from its verdict.
_COPIED = sorted(
    {field.name for field in fields(Result)} & {field.name for field in fields(Verdict)}
)


def _caveats(verdict: Verdict, *, stand_in: bool) -> list[Caveat]:
    """Return the caveats that a reader of the result should know in addition to its status."""
    caveats = []
    if verdict.doubt:
        caveats.append(_note("doubt", verdict.doubt))
    if verdict.widened:
        sentence = f"the interval is wider than measured because of {verdict.widened}"
        caveats.append(Caveat(code=verdict.widened, severity=Severity.BIASES, sentence=sentence))
    if stand_in:
        caveats.append(_note("simulated", "the hardware was simulated or shared"))
    if verdict.waived:
        caveats.append(_note("waived", "a waiver expects this FAIL"))
    return caveats


def _note(code: str, sentence: str) -> Caveat:
    return Caveat(code=code, severity=Severity.NOTES, sentence=sentence)


def _remedy(verdict: Verdict) -> str:
    """Return a measure that would decide an inconclusive verdict, or an empty string."""
    if verdict.counts is not Status.INCONCLUSIVE:
        return ""
    if verdict.more is not None:
        return f"about {verdict.more} more {metrics.metric(verdict.metric).sampled_by}"
    usual = f"over {MOST_PAIRS} more pairs, or a quieter host"
    return REMEDIES.get(verdict.reason, usual)


def required(run: RunRecord) -> list[Result]:
    """Return the results that thresholds judge, worst first."""
    counted = [result for result in results(run) if result.required]
    return sorted(counted, key=lambda result: SEVERITY.index(result.counts))


def defects(run: RunRecord) -> list[Result]:
    """Return the failures that no threshold judges, at most one for each case.

    These failures also make the run fail. Examples are an incorrect training run, and a negative
    control that was not detected. Cases with a failed threshold are omitted.
    """
    failing = (Status.ERROR, Status.FAIL)
    reported = {result.case for result in required(run) if result.counts in failing}
    first: dict[str, Result] = {}
    for result in results(run):
        unruled = not result.rule and result.counts in failing
        if unruled and result.case not in reported:
            first.setdefault(result.case, result)
    return list(first.values())


def worst(run: RunRecord) -> Result | None:
    """Return the worst result, for the headline.

    Among equally bad results, a result on real hardware is preferred.
    """
    judged = [*required(run), *defects(run)]
    return min(judged, key=lambda r: (SEVERITY.index(r.counts), r.stand_in), default=None)


def document(result: Result) -> dict[str, Json]:
    """Return a result as one flat row for JSON, CSV and data frames.

    The units are those of ``Verdict``.
    """
    measured = result.measured
    row = {
        "status": str(result.status),
        "plan": result.plan,
        "case": result.case,
        "world": result.key.world,
        "metric": result.metric,
        "against": result.against,
        "value": result.value,
        "low": result.low,
        "high": result.high,
        "measured_low": None if measured is None else measured.low,
        "measured_high": None if measured is None else measured.high,
    }
    rest = ("widened", "bound", "rule", "n", "reason", "detail", "remedy", "more", "mde", "p95",
            "worst", "sd", "lag1", "evidence", "waived", "simulated", "stand_in", "required",
            "contrast", "case_hash")  # fmt: skip
    row |= {name: to_doc(getattr(result, name)) for name in rest}
    return row | {"caveats": [caveat.sentence for caveat in result.caveats]}


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The counts of the results that thresholds judge.

    ``hold`` is the number of passed results, and ``failed`` the number of failed results without a
    waiver. ``recorded`` counts results with only a provisional bound, or with a bound from another
    setup. ``stand_ins`` counts results on simulated hardware. ``controls`` counts negative controls
    that were detected. ``beside`` counts failures that no threshold judges.
    """

    total: int
    hold: int
    failed: int
    errors: int
    undecided: int
    not_comparable: int
    waived: int
    recorded: int
    stand_ins: int
    controls: int
    beside: int = 0

    @property
    def parts(self) -> Sequence[tuple[Status, int, str]]:
        """Each outcome that occurred: the status of its results, their number, and a text."""
        every = (
            (Status.ERROR, self.errors, "in error"),
            (Status.FAIL, self.failed, "failed"),
            (Status.FAIL, self.beside, "failed without a threshold"),
            (Status.INCONCLUSIVE, self.undecided, "inconclusive"),
            (Status.NOT_COMPARABLE, self.not_comparable, "not comparable"),
            (Status.PASS, self.hold, "passed"),
            (Status.RECORDED, self.waived, "waived"),
            (Status.RECORDED, self.recorded, "with a provisional bound"),
            (Status.RECORDED, self.controls, "negative control detected"),
        )
        return [part for part in every if part[1]]

    def __str__(self) -> str:
        """Return the counts in words.

        ``9 of 11 thresholds pass, 2 inconclusive (6 of the 11 on simulated hardware)``
        """
        noun = "threshold passes" if self.total == 1 else "thresholds pass"
        counted = [
            f"{count} {word}"
            for _, count, word in self.parts
            if word not in ("passed", "negative control detected")
        ]
        apart = ""
        if self.stand_ins:
            of_all = "all" if self.stand_ins == self.total else f"{self.stand_ins}"
            whole = "" if not counted or of_all == "all" else f" of the {self.total}"
            apart = f" ({of_all}{whole} on simulated hardware)"
        return ", ".join([f"{self.hold} of {self.total} {noun}", *counted]) + apart


def tally(run: RunRecord) -> Tally:
    """Count the results of a run that thresholds judge, by their outcome."""
    judged = required(run)
    counts = [result.counts for result in judged]
    waived = sum(result.waived and result.status is Status.FAIL for result in judged)
    return Tally(
        total=len(judged),
        hold=counts.count(Status.PASS),
        failed=counts.count(Status.FAIL),
        errors=counts.count(Status.ERROR),
        undecided=counts.count(Status.INCONCLUSIVE),
        not_comparable=counts.count(Status.NOT_COMPARABLE),
        waived=waived,
        recorded=counts.count(Status.RECORDED) - waived,
        stand_ins=sum(result.stand_in for result in judged),
        controls=sum(result.reason is Reason.CAUGHT for result in results(run)),
        beside=len(defects(run)),
    )


def discoveries(run: RunRecord) -> tuple[int, int]:
    """Return how many PASSes and FAILs remain at a false discovery rate of 5 % (e-BH).

    A single verdict errs at most one time in twenty, so some of many verdicts would err.
    """
    judged = [
        result
        for result in results(run)
        if result.rule and result.value is not None and result.status is not Status.ERROR
    ]
    counts = []
    for status in (Status.PASS, Status.FAIL):
        evidence = [(r.evidence or 0.0) if r.status is status else 0.0 for r in judged]
        counts.append(len(judge.discoveries(evidence, judge.ALPHA / 2)))
    return counts[0], counts[1]
