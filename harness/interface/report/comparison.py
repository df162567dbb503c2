"""Print the comparison of two runs."""

from collections.abc import Mapping, Sequence

from harness.analysis.compare import DRIFT, Compared, Comparison, Reading, Shift
from harness.analysis.judging.fingerprint import between
from harness.base.formatting import rate, si
from harness.cases.metrics import METRICS
from harness.interface.report.text import Column, rule, table, wrap
from harness.interface.report.timeline import TERMS
from harness.measure.interleaving import SAME, Difference
from harness.record import RunRecord, Term

#: Readings that are listed without ``--every``.
_CHANGED = (Reading.FASTER, Reading.SLOWER)


def lines(
    a: RunRecord, b: RunRecord, comparison: Comparison, width: int, *, every: bool = False
) -> list[str]:
    """Return the comparison of two runs.

    It lists machines and differences, has a row for each case, and ends with the geometric mean
    over the cases that both ran. Other metrics are listed if they changed (with ``every``: all).
    The last table shows how the parts of a step changed.
    """
    shown = []
    for ab, run in (("A", a), ("B", b)):
        torch = run.software.get("torch", "n/a")
        shown.append(
            f" {ab}  {run.machine.key}  {run.machine.title}  torch {torch}  {run.started_at[:10]}"
        )
    if a.run == b.run:
        shown.append(" A and B are the same run")
    for text in comparison.forced:
        shown += wrap(f" FORCED   not comparable: {text}", width, 10)
    for text in comparison.differs:
        shown += wrap(f" differs: {text}", width, 10)
    shown += ["", *_table(comparison, width), ""]
    shown += [*_others(comparison, width, every), *_shifts(comparison, width)]
    both = sum(row.ratio is not None for row in comparison.rows)
    if comparison.mean is not None:
        span = "n/a: at least one case has fewer than 2 launches"
        if comparison.mean_low is not None:
            span = f"{comparison.mean_low:.3f}, {comparison.mean_high:.3f}"
        shown += wrap(
            f" {comparison.metric} ({METRICS[comparison.metric].unit}): geometric mean over the"
            f" {both} cases that both ran: {comparison.mean:.3f} [{span}]",
            width,
            1,
        )
    else:
        shown.append(" the two runs have no case in common, so there is nothing to compare")
    shown += wrap(
        f" better or worse: the whole interval lies more than {DRIFT:.0%} from 1, because machines"
        f" drift between runs; no change: all of it within {DRIFT:.0%}; otherwise undecided",
        width,
        1,
    )
    for text in comparison.not_compared:
        shown += wrap(f" not compared: {text}", width, 15)
    return shown


def _others(comparison: Comparison, width: int, every: bool) -> list[str]:
    """Return the comparison by other metrics.

    It lists the metrics that changed, and counts the others; with ``every`` it lists all.
    """
    shown = [other for other in comparison.others if every or other.reading in _CHANGED]
    rest = len(comparison.others) - len(shown)
    columns = [
        Column[Compared]("case", 8, lambda r: r.case.id, left=True),
        Column("metric", 9, lambda r: r.metric, left=True),
        Column("A", 7, lambda r: _value(r.a, METRICS[r.metric].unit)),
        Column("B", 6, lambda r: _value(r.b, METRICS[r.metric].unit)),
        Column("B/A [95%]", 8, _ratio, left=True),
        Column("reading", 9, lambda r: str(r.reading), left=True),
    ]
    lines = [rule("other figures", width), *table(columns, shown, width)] if shown else []
    if rest:
        lines.append(f" {rest} other figures: no change detected (--every lists them)")
    return [*lines, ""] if lines else []


def _shifts(comparison: Comparison, width: int) -> list[str]:
    """Return the profiled steps of both runs, and by how many ms each part of them grew."""
    if not (shifts := comparison.shifts):
        return []
    terms = [t for t in TERMS if any(abs(shift.terms_ns.get(t, 0.0)) > 1e4 for shift in shifts)]

    def term(which: Term) -> Column[Shift]:
        return Column(
            TERMS[which],
            7 - terms.index(which),
            lambda s: f"{s.terms_ns.get(which, 0.0) / 1e6:+.2f}",
        )

    columns = [
        Column[Shift]("case", 8, lambda s: s.case, left=True),
        Column("A ms", 9, lambda s: f"{s.before_ns / 1e6:.2f}"),
        Column("B ms", 9, lambda s: f"{s.after_ns / 1e6:.2f}"),
        Column("B - A", 10, lambda s: f"{(s.after_ns - s.before_ns) / 1e6:+.2f}"),
        *map(term, terms),
    ]
    lines = rule("how a profiled step changed, ms", width)
    return [lines, *table(columns, shifts, width), ""]


def interleaved(
    differences: Sequence[Difference],
    setups: Sequence[tuple[str, str]],
    software: Mapping[str, Mapping[str, str]],
    width: int,
) -> list[str]:
    """Return two environments, their software differences, and a row for each case."""
    shown = []
    for name, python in setups:
        torch = software.get(name, {}).get("torch", "n/a")
        shown += wrap(f" {name}  {python}  torch {torch}", width, 4)
    a, b = (software.get(name, {}) for name, _ in setups)
    for text in between(a, b):
        shown += wrap(f" differs: {text}", width, 10)
    columns = [
        Column[Difference]("case", 9, lambda d: d.case, left=True),
        Column[Difference]("pairs", 1, lambda d: str(d.num_pairs)),
        Column[Difference]("throughput B/A [95%]", 8, _ends, left=True),
        Column[Difference]("reading", 9, lambda d: str(d.reading), left=True),
    ]
    shown += ["", *table(columns, differences, width), ""]
    for difference in differences:
        shown += wrap(_alike(difference), width, 6)
    shown += wrap(
        f" measured in the same blocks, so drift affects A and B equally; no change: all of the"
        f" interval within {SAME:.0%}; the interval stays valid however often it is inspected",
        width,
        1,
    )
    return shown


def _alike(difference: Difference) -> str:
    """Return the ratio A/A; if it differs from 1, the ratio B/A is not reliable."""
    where = f" A/A  {difference.case}:"
    if difference.alike is None:
        return f"{where} n/a, no block has two launches of A"
    low, high = difference.alike_low, difference.alike_high
    text = f"{where} {_ratio_of(difference.alike, low, high)}, launches of the same block"
    if low is not None and high is not None and not low <= 1.0 <= high:
        text += "; A differs from itself, so B/A is not reliable: look for background load"
    return text


def _ends(difference: Difference) -> str:
    return _ratio_of(difference.ratio, difference.low, difference.high)


def _ratio_of(ratio: float, low: float | None, high: float | None) -> str:
    ends = "n/a" if low is None else f"{low:.4f}, {high:.4f}"
    return f"{ratio:.4f} [{ends}]"


def _table(comparison: Comparison, width: int) -> list[str]:
    """Return one row per case. If names leave too little width for the ratio, they get lines."""
    unit = METRICS[comparison.metric].unit
    rows = sorted(
        comparison.rows, key=lambda compared: (compared.case.family, compared.case.world_size)
    )
    names = [compared.case.family + compared.case.extras for compared in rows]
    first = {
        id(compared)
        for compared, name, above in zip(rows, names, ["", *names], strict=False)
        if name != above
    }

    def name(row: Compared) -> str:
        return row.case.family + row.case.extras if id(row) in first else ""

    columns = [
        Column("case", 10, name, left=True),
        Column("ranks", 9, lambda r: r.case.world),
        Column("A", 7, lambda r: _value(r.a, unit)),
        Column("B", 6, lambda r: _value(r.b, unit)),
        Column("B/A [95%]", 8, _ratio, left=True),
        Column("eff A", 3, lambda r: "" if r.efficiency_a is None else f"{r.efficiency_a:.3f}"),
        Column("eff B", 3, lambda r: "" if r.efficiency_b is None else f"{r.efficiency_b:.3f}"),
        Column("reading", 9, lambda r: str(r.reading), left=True),
    ]
    nothing = f" no launch of either run has {comparison.metric}"
    header, *shown = table(columns, rows, width) if rows else [nothing]
    if rows and "B/A" not in header:  # Names get separate lines.
        header, *alone = table(columns[1:], rows, width - 2)
        header = f"  {header}"
        shown = []
        for row, line in zip(rows, alone, strict=True):
            shown += [*(wrap(f" {name(row)}", width, 3) if name(row) else ()), f"  {line}"]
    return [header, *shown]


def _ratio(row: Compared) -> str:
    span = "n/a" if row.low is None else f"{row.low:.2f}, {row.high:.2f}"
    return "-" if row.ratio is None else f"{row.ratio:.2f} [{span}]"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return rate(value) if unit == "samples/s" else si(value, unit)
