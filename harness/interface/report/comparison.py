"""Two runs side by side in the terminal."""

from collections.abc import Mapping, Sequence

from harness.analysis.compare import DRIFT, Compared, Comparison
from harness.analysis.judging.fingerprint import between
from harness.base.numbers import rate, si
from harness.interface.report.text import Column, table, wrap
from harness.measure.setups.interleaving import SAME, Difference
from harness.record import RunRecord
from harness.spec.metrics import METRICS


def lines(a: RunRecord, b: RunRecord, comparison: Comparison, width: int) -> list[str]:
    """Machines, what differs, one row per case, and the geometric mean over what both ran."""
    out = []
    for ab, run in (("A", a), ("B", b)):
        torch = run.software.get("torch", "n/a")
        out.append(
            f" {ab}  {run.machine.key}  {run.machine.title}  torch {torch}  {run.started_at[:10]}"
        )
    if a.run == b.run:
        out.append(" A and B are one and the same run")
    for text in comparison.forced:
        out += wrap(f" FORCED   not comparable: {text}", width, 10)
    for text in comparison.differs:
        out += wrap(f" differs: {text}", width, 10)
    out += ["", *_table(comparison, width), ""]
    both = sum(r.ratio is not None for r in comparison.rows)
    if comparison.mean is not None:
        span = "n/a: a case has fewer than 2 launches"
        if comparison.mean_low is not None:
            span = f"{comparison.mean_low:.3f}, {comparison.mean_high:.3f}"
        out += wrap(
            f" {comparison.metric} ({METRICS[comparison.metric].unit}): geometric mean over the"
            f" {both} cases that both ran: {comparison.mean:.3f} [{span}]",
            width, 1,
        )  # fmt: skip
    else:
        out.append(" the two runs have no case in common: nothing to compare")
    out += wrap(
        f" better or worse: the whole interval lies more than {DRIFT:.0%} from 1, since runs drift;"
        f" no change: all of it within {DRIFT:.0%}; else undecided",
        width, 1,
    )  # fmt: skip
    for text in comparison.not_compared:
        out += wrap(f" not compared: {text}", width, 15)
    return out


def interleaved(
    found: Sequence[Difference],
    setups: Sequence[tuple[str, str]],
    software: Mapping[str, Mapping[str, str]],
    width: int,
) -> list[str]:
    """Two environments, in which software they differ, and a row for each case."""
    out = []
    for name, python in setups:
        torch = software.get(name, {}).get("torch", "n/a")
        out += wrap(f" {name}  {python}  torch {torch}", width, 4)
    a, b = (software.get(name, {}) for name, _ in setups)
    for text in between(a, b):
        out += wrap(f" differs: {text}", width, 10)
    columns = [
        Column[Difference]("case", 9, lambda d: d.case, left=True),
        Column[Difference]("pairs", 1, lambda d: str(d.num_pairs)),
        Column[Difference]("throughput B/A [95%]", 8, _ends, left=True),
        Column[Difference]("reading", 9, lambda d: str(d.reading), left=True),
    ]
    out += ["", *table(columns, found, width), ""]
    out += wrap(
        f" measured in the same blocks, so drift is in neither; no change: all of the interval"
        f" within {SAME:.0%}; the interval holds at every look",
        width, 1,
    )  # fmt: skip
    return out


def _ends(one: Difference) -> str:
    ends = "n/a" if one.low is None else f"{one.low:.4f}, {one.high:.4f}"
    return f"{one.ratio:.4f} [{ends}]"


def _table(comparison: Comparison, width: int) -> list[str]:
    """One row per case; a ratio is never left out for the sake of a name."""
    unit = METRICS[comparison.metric].unit
    rows = sorted(comparison.rows, key=lambda r: (r.case.family, r.case.world_size))
    names = [r.case.family + r.case.extras for r in rows]
    first = {
        id(r) for r, name, above in zip(rows, names, ["", *names], strict=False) if name != above
    }

    def name(row: Compared) -> str:
        return row.case.family + row.case.extras if id(row) in first else ""

    def ratio(row: Compared) -> str:
        span = "n/a" if row.low is None else f"{row.low:.2f}, {row.high:.2f}"
        return "-" if row.ratio is None else f"{row.ratio:.2f} [{span}]"

    columns = [
        Column("case", 10, name, left=True),
        Column("ranks", 9, lambda r: r.case.world),
        Column("A", 7, lambda r: _value(r.a, unit)),
        Column("B", 7, lambda r: _value(r.b, unit)),
        Column("B/A [95%]", 8, ratio, left=True),
        Column("eff A", 3, lambda r: "" if r.efficiency_a is None else f"{r.efficiency_a:.3f}"),
        Column("eff B", 3, lambda r: "" if r.efficiency_b is None else f"{r.efficiency_b:.3f}"),
        Column("reading", 9, lambda r: str(r.reading), left=True),
    ]
    header, *shown = table(columns, rows, width) if rows else [" no case in either run"]
    if rows and "B/A" not in header:  # names have lines of their own
        header, *alone = table(columns[1:], rows, width - 2)
        header, shown = f"  {header}", []
        for row, line in zip(rows, alone, strict=True):
            shown += [*(wrap(f" {name(row)}", width, 3) if name(row) else ()), f"  {line}"]
    return [header, *shown]


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return rate(value) if unit == "samples/s" else si(value, unit)
