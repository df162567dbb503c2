"""Format a comparison of machines: their best rates, every case, totals, and lost time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.analysis.compare import DRIFT, Reading, reading_of
from harness.base.documents import Json, fields_of
from harness.base.formatting import duration, rate, si
from harness.cases.metrics import METRICS
from harness.features.machines.machines import HardwareComparison, MachineEntry, Mean, Side, Total
from harness.interface.report import timeline
from harness.interface.report.tabled import Table, written
from harness.interface.report.text import Column, legend, number, rule, wrap
from harness.record import Term

#: Interpretation of an interval as it is displayed. Every side is compared with the first one, A.
_READS = {
    Reading.FASTER: "better",
    Reading.SLOWER: "worse",
    Reading.SAME: "no difference",
}
#: Meanings of the columns whose heads do not explain them.
MEANINGS = {
    "of ceiling": "FLOP/s relative to a matrix product on the same device in the same run",
    "headroom": "share of the device memory that the peak leaves free",
}


def lines(comparison: HardwareComparison, width: int) -> list[str]:
    """Return the comparison as lines for a terminal."""
    shown = [rule("machines", width, "=")]
    for side in comparison.sides:
        message = f" {side.name}  {side.machine.key}  {side.machine.title}  torch {side.torch}"
        shown += wrap(message, width, 4)
    for text in comparison.differs:
        shown += wrap(f" differs: {text}", width, 10)
    if comparison.means:
        shown += ["", *(f" {line}" for line in purchase(comparison))]
    ceilings = sides(comparison)
    if len(ceilings.shown_columns) > 2:
        shown += ["", *ceilings.lines(width)]
    of_cases = entries(comparison, named=False).lines(width)
    shown += ["", rule("cases", width), *of_cases]
    if of_cases and (explained := legend(MEANINGS, of_cases[0])):
        shown += wrap(f" {explained}", width, 1)
    if comparison.totals:
        shown += ["", rule("all devices of each machine", width), *totals(comparison).lines(width)]
    if (spent := lost(comparison)).rows:
        shown += ["", rule("where the time went: ms lost per step", width), *spent.lines(width)]
        shown.append(f" {timeline.STARRED}")
    shown.append("")
    for text in notes(comparison):
        shown += wrap(f" {text}", width, 1)
    return shown


def markdown(comparison: HardwareComparison) -> list[str]:
    """Return the comparison as Markdown, for the summary of a CI system or for an issue."""
    shown = [
        f"### {headline(comparison)}",
        "",
        *sides(comparison).markdown(),
        "",
        *entries(comparison).markdown(),
    ]
    for table in (totals(comparison), lost(comparison)):
        shown += ["", *table.markdown()] if table.rows else []
    notes_of = [*comparison.differs, *notes(comparison), *meanings(comparison)]
    return [*shown, "", *(f"- {text}" for text in notes_of)]


def headline(comparison: HardwareComparison) -> str:
    """Return the result in one line, for readers who are not engineers."""
    if not comparison.means:
        return "Nothing to compare: no case was measured on every machine"
    unit = METRICS[comparison.metric].unit
    names = {side.name: named(side, comparison.sides) for side in comparison.sides}
    listed = "; ".join(
        f"{names[mean.side]} is {_times(mean)} {names['A']} ({_word(mean)})"
        for mean in comparison.means
    )
    cases = f"{comparison.num_common} case{'s' if comparison.num_common > 1 else ''}"
    return f"{listed} in {comparison.metric} ({unit}), over the {cases} that all of them ran"


def named(side: Side, sides: Sequence[Side]) -> str:
    """Return the name of a machine, with its letter if another one has the same name."""
    alike = [other for other in sides if other.machine.title == side.machine.title]
    return side.machine.title if len(alike) == 1 else f"{side.machine.title} ({side.name})"


def _word(mean: Mean) -> str:
    """Return the interpretation of an interval, as used in a sentence."""
    return _READS.get(mean.reading, str(mean.reading))


def purchase(comparison: HardwareComparison) -> list[str]:
    """Return how the other machines compare for the same number of devices, energy and money."""
    names = {side.name: named(side, comparison.sides) for side in comparison.sides}
    shown = []
    for mean in comparison.means:
        joules = "n/a: the devices do not report energy"
        if mean.joule is not None:
            joules = f"{_times(mean.joule)}: {_word(mean.joule)}"
        money = "n/a: --price A=PER_HOUR --price B=PER_HOUR"
        if mean.price_factor is not None:
            paid = _scaled(mean, mean.price_factor)
            money = f"{_times(paid)}: {_word(paid)}"
        shown += [
            f"{names[mean.side]} against {names['A']}, {comparison.metric}:",
            f"  for the same devices  {_times(mean)}: {_word(mean)}",
            f"  for the same energy   {joules}",
            f"  for the same money    {money}",
        ]
    return shown


def _scaled(mean: Mean, factor: float) -> Mean:
    """Return the mean with all values multiplied by an exact factor."""
    if mean.low is None or mean.high is None:
        return replace(mean, mean=mean.mean * factor)
    low = mean.low * factor
    high = mean.high * factor
    reading = reading_of(low, high, more_is_better=True)
    return replace(mean, mean=mean.mean * factor, low=low, high=high, reading=reading)


def notes(comparison: HardwareComparison) -> list[str]:
    """Return notes on the values, and on cases that were not compared."""
    sentences = [headline(comparison) + "."] if comparison.means else [headline(comparison)]
    by_run: dict[str, list[str]] = {}
    for side in comparison.sides:
        by_run.setdefault(side.run, []).append(side.name)
    sentences += [
        f"{' and '.join(alike)} are the same run" for alike in by_run.values() if len(alike) > 1
    ]
    sentences.append(
        f"better or worse: the whole interval lies more than {DRIFT:.0%} from 1, because runs"
        f" drift; no difference: the whole interval lies within {DRIFT:.0%} of 1; else undecided"
    )
    if any(side.price is not None for side in comparison.sides):
        sentences.append(
            "prices are for a million samples or tokens, and count only the devices in use"
        )
    sentences += [f"not in the mean: {text}" for text in comparison.missing]
    return sentences + [f"not compared: {text}" for text in comparison.not_compared]


def meanings(comparison: HardwareComparison) -> list[str]:
    """Return the meanings of all columns of cases that have values."""
    heads = "  ".join(column.header for column in entries(comparison).shown_columns)
    return [explained] if (explained := legend(MEANINGS, heads)) else []


def _times(mean: Mean) -> str:
    span = "" if mean.low is None else f" [{mean.low:.3f}, {mean.high:.3f}]"
    return f"{mean.mean:.3f}{span} times"


def sides(comparison: HardwareComparison) -> Table[Side]:
    """Return a table of the machines, with the rates that their devices reached."""
    dtypes = dict.fromkeys(d for side in comparison.sides for d in side.matmul_flops)

    def matmul(dtype: str) -> Column[Side]:
        return number(
            f"{dtype} matmul",
            9,
            lambda side: side.matmul_flops.get(dtype),
            lambda v: si(v, "FLOP/s"),
        )

    def of_peak(dtype: str) -> Column[Side]:
        def value(s: Side) -> float | None:
            reached, peak = s.matmul_flops.get(dtype), s.peak_flops.get(dtype)
            return reached / peak if reached and peak else None

        return number(f"of {dtype} peak", 7, value, lambda v: f"{v:.0%}")

    return Table(
        columns=[
            Column("machine", 10, lambda s: s.name, left=True),
            Column("devices", 9, lambda s: str(s.num_devices), raw=lambda s: s.num_devices),
            *(column for d in dtypes for column in (matmul(d), of_peak(d))),
            number("memory copy", 8, lambda s: s.copy_bps, lambda v: si(v, "B/s")),
            number("all-reduce bus", 8, lambda s: s.bus_bps, lambda v: si(v, "B/s")),
            number("price an hour", 6, lambda s: s.price, lambda v: f"{v:g}"),
        ],
        rows=comparison.sides,
    )


def entries(comparison: HardwareComparison, *, named: bool = True) -> Table[MachineEntry]:
    """Return a row for each case and machine.

    Unless ``named`` is set, only the first of the rows of a case names the case.
    """
    rows = comparison.entries
    first = {
        id(row)
        for row, above in zip(rows, [None, *rows], strict=False)
        if above is None
        or above.case.id.partition("@")[0] != row.case.id.partition("@")[0]
        or above.case.extras != row.case.extras
    }

    def name(e: MachineEntry) -> str:
        return e.case.family + e.case.extras if named or id(e) in first else ""

    def case(e: MachineEntry) -> Json:
        return e.case.id

    return Table(
        columns=[
            Column("case", 90, name, left=True, raw=case),
            Column("ranks", 89, lambda e: e.case.world),
            Column("on", 100, lambda e: e.side, left=True),
            number("samples/s", 80, lambda e: e.throughput, rate),
            number("per device", 60, lambda entry: entry.per_device, rate),
            Column("v A [95%]", 95, _ratio, left=True, raw=lambda e: e.ratio),
            Column("reading", 96, _reading, left=True),
            number("speedup", 40, _of_point("speedup"), lambda v: f"{v:.2f}x"),
            number("efficiency", 70, _of_point("efficiency"), lambda v: f"{v:.3f}"),
            number("ms/step", 30, lambda entry: entry.step_s, lambda v: f"{v * 1e3:.1f}"),
            number("MFU", 50, lambda entry: entry.mfu, lambda v: f"{v:.2f}"),
            number("of ceiling", 55, lambda entry: entry.attained, lambda v: f"{v:.2f}"),
            number("peak memory", 20, lambda entry: entry.peak_bytes, lambda v: si(v, "B")),
            number("headroom", 25, lambda entry: entry.headroom, lambda v: f"{v:.0%}"),
            number("J/sample", 45, lambda entry: entry.energy_j, lambda v: f"{v:.3g}"),
            number("J/token", 44, lambda entry: entry.energy_token_j, lambda v: f"{v:.3g}"),
            number("price/M samples", 65, lambda entry: entry.price, lambda v: f"{v:.4g}"),
            number("price/M tokens", 64, lambda entry: entry.price_tokens, lambda v: f"{v:.4g}"),
            number("epoch", 63, lambda entry: entry.epoch_s, duration),
        ],
        rows=rows,
    )


def _of_point(field: str) -> Callable[[MachineEntry], float | None]:
    return lambda entry: None if entry.point is None else getattr(entry.point, field)


def _ratio(e: MachineEntry) -> str:
    if e.ratio is None:
        return ""
    return f"{e.ratio:.3f}" + ("" if e.low is None else f" [{e.low:.2f}, {e.high:.2f}]")


def _reading(e: MachineEntry) -> str:
    return "" if e.reading is None else _READS.get(e.reading, str(e.reading))


def totals(comparison: HardwareComparison) -> Table[Total]:
    """Return a table that compares each machine's largest world with the sum of its devices."""
    return Table(
        columns=[
            Column("ladder", 90, lambda t: t.ladder, left=True),
            Column("on", 100, lambda t: t.side, left=True),
            Column("devices", 85, lambda t: str(t.devices), raw=lambda t: t.devices),
            number("one alone", 70, lambda total: total.alone, rate),
            number("sum of devices", 60, lambda total: total.alone * total.devices, rate),
            number("in all", 80, lambda total: total.together, rate),
            number("of the sum", 75, lambda total: total.share, lambda v: f"{v:.3f}"),
            number("sum v A", 50, lambda total: total.ratio_alone, lambda v: f"{v:.3f}"),
            number("in all v A", 78, lambda total: total.ratio, lambda v: f"{v:.3f}"),
        ],
        rows=comparison.totals,
    )


def lost(comparison: HardwareComparison) -> Table[MachineEntry]:
    """Return a table of the ms by which each part of a profiled step exceeds its baseline."""
    rows = [entry for entry in comparison.entries if entry.lost_ns]
    terms = [t for t in timeline.TERMS if any(row.lost_ns.get(t) for row in rows)]

    def column(term: Term, keep: int) -> Column[MachineEntry]:
        return number(
            timeline.head(term),
            keep,
            lambda entry: entry.lost_ns.get(term, 0.0) / 1e6,
            lambda v: f"{v:.2f}",
        )

    return Table(
        columns=[
            Column("case", 90, lambda e: e.case.id, left=True),
            Column("on", 100, lambda e: e.side, left=True),
            number("lost", 95, lambda e: sum(e.lost_ns.values()) / 1e6, lambda v: f"{v:.2f}"),
            *(column(t, 80 - i) for i, t in enumerate(terms)),
        ],
        rows=rows,
    )


def csv(comparison: HardwareComparison) -> list[str]:
    """Return the cases as comma-separated values, in SI units."""
    runs = {s.name: s for s in comparison.sides}
    rows = []
    for entry in comparison.entries:
        row = {
            key: value
            for key, value in fields_of(entry).items()
            if key not in ("case", "point", "lost_ns")
        }
        row |= {k: getattr(entry.point, k, None) for k in ("speedup", "efficiency")}
        row |= {f"lost_{term}_ns": entry.lost_ns.get(term) for term in timeline.TERMS}
        side = runs[entry.side]
        where = {"case": entry.case.id, "machine": side.machine.hardware_class, "run": side.run}
        rows.append({**where, **row})
    return written(rows)
