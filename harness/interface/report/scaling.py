"""Build the scaling table for terminal and page: every world size of every scaling sweep."""

from collections.abc import Callable, Sequence
from itertools import islice, zip_longest
from typing import TypeAlias

from harness.analysis.judging.points import shown_against
from harness.analysis.ladder import LadderRow, ladder_rows
from harness.analysis.results import results_of
from harness.base.formatting import rate
from harness.cases import Plan, StandIn
from harness.interface.report import text
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, number, table, wrap
from harness.record import RunRecord, Status
from harness.record.outcome import SEVERITY

#: A line of the scaling table: a line of a sweep's name, and one of its world sizes. It is None if
#: the name has more lines than the sweep has world sizes.
Named: TypeAlias = tuple[str, LadderRow | None]
#: The lines of a scaling sweep's name, and its world sizes.
Ladder: TypeAlias = tuple[list[str], list[LadderRow]]
#: The header of the column with the energy that devices used.
ENERGY = "J/sample"
MFU = "MFU"
MOST_MFU = "MFU<"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return text like ``0.954 [0.946, 0.961]``."""
    if value is None:
        return "n/a"
    if low is None or high is None:
        return f"{value:.3f} [n/a]"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def scaling_table(run: RunRecord, width: int = 100) -> list[str]:
    """Return every world size relative to plain, worst sweep first, simulated devices apart."""
    ladders: dict[bool, list[Ladder]] = {False: [], True: []}  # True: the device is simulated.
    worst = {
        p.hash: min(
            (SEVERITY.index(result.status) for result in results_of(run, p.hash)),
            default=9,
        )
        for p in run.plans
    }
    for plan in sorted(run.plans, key=lambda p: worst[p.hash]):
        rungs = ladder_rows(run, plan)
        if not rungs:
            continue
        names = text.named(plan.arms[-1].case).split("\n")
        if (against := shown_against(plan)) != "plain":
            names.append(f"  v {against}")
        ladders[bool(plan.arms[0].case.stand_in)].append((names, rungs))
    all_ladders = [*ladders[False], *ladders[True]]
    if not all_ladders:
        return []
    rows = [rung for _, rungs in all_ladders for rung in rungs]
    columns = [_NAMES, *map(_lifted, _measured(RUNGS, rows))]
    header, lines = _laid_out(columns, all_ladders, width)
    num_real = len(ladders[False])
    shown = [header, *(line for of_one in lines[:num_real] for line in of_one)]
    if ladders[True]:
        kinds = sorted({s for p in run.plans for arm in p.arms for s in arm.case.stand_in})
        shown.append(f" -- simulated ({', '.join(kinds)}): never compared with hardware --")
        shown += [line for of_one in lines[num_real:] for line in of_one]
    if crowded := sorted(
        {
            arm.case.world
            for p in run.plans
            for arm in p.arms
            if StandIn.OVERSUBSCRIBED in run.stand_ins(arm.case)
        }
    ):
        shown.append(
            f" -- oversubscribed ({', '.join(crowded)}): more ranks than cores, which counts as"
            " simulated and is never compared with hardware --"
        )
    return shown


def _laid_out(
    columns: Sequence[Column[Named]], ladders: Sequence[Ladder], width: int
) -> tuple[str, list[list[str]]]:
    """Return the header, and the lines of each scaling sweep.

    A verdict is never shown without its bound. If the bounds do not fit next to the names, the
    names get separate lines.
    """
    beside = [list(zip_longest(names, rungs, fillvalue=None)) for names, rungs in ladders]
    flat = [(name or "", rung) for ladder in beside for name, rung in ladder]
    header, *lines = table(columns, flat, width)
    bounded = any(row.result and row.result.bound for _, rungs in ladders for row in rungs)
    if not bounded or "bound" in header.split():
        rest = iter(lines)
        return header, [list(islice(rest, len(ladder))) for ladder in beside]
    rungs_alone = [("", rung) for _, rungs in ladders for rung in rungs]
    header, *lines = table(columns[1:], rungs_alone, width - 2)
    rest = (f"  {line}" for line in lines)
    return f"  {header}", [
        [
            *wrap(" ".join([" " + names[0], *(n.strip() for n in names[1:])]), width, 3),
            *islice(rest, len(rungs)),
        ]
        for names, rungs in ladders
    ]


def _as(form: str, scale: float = 1.0, unit: str = "") -> Callable[[float], str]:
    return lambda value: format(value * scale, form) + unit


def _sent(row: LadderRow) -> str:
    several = row.row.case.world_size > 1
    none = "n/a" if several else ""
    return none if row.row.sent_bytes is None else f"{row.row.sent_bytes * 1e-6:.2f}"


def _efficiency(row: LadderRow) -> str:
    widened = "" if row.result is None else row.result.widened
    return f"{interval(row.point.efficiency, *row.interval)} {widened}".rstrip()


def _bound(row: LadderRow) -> str:
    return row.result.bound if row.result else ""


def _status(row: LadderRow) -> str:
    """Return the status, with a mark if no threshold judges the result and it has a caveat."""
    if row.result is None:
        return ""
    doubtful = row.result.status is Status.RECORDED and row.result.doubt
    return f"{row.result.status} ~" if doubtful else str(row.result.status)


def _lifted(column: Column[LadderRow]) -> Column[Named]:
    """Return a column for a table whose lines may have only a name."""
    return Column(
        column.header,
        column.keep,
        lambda line: "" if line[1] is None else column.cell(line[1]),
        column.left,
    )


#: The columns of a world size.
RUNGS: Sequence[Column[LadderRow]] = (
    Column("ranks", 99, lambda r: r.row.case.world, raw=lambda r: r.row.case.world_size),
    number("samples/s", 58, lambda row: row.point.throughput, rate),
    number("tok/s", 6, lambda row: row.row.tokens_per_s, rate),
    number("per rank", 20, lambda row: row.point.throughput / row.row.case.world_size, rate),
    number("ms/step", 30, lambda row: row.row.step_s, _as(".1f", 1e3), "n/a"),
    number("speedup", 60, lambda row: row.point.speedup, _as(".2f", unit="x")),
    Column("efficiency [95%]", 90, _efficiency, left=True, raw=lambda r: r.point.efficiency),
    number("p95", 62, lambda row: row.point.p95, _as(".3f"), "n/a"),
    number("worst", 72, lambda row: row.point.worst, _as(".3f")),
    number("v wrapped", 15, lambda row: row.wrapped, _as(".3f")),
    Column("n", 10, lambda r: str(r.point.n), raw=lambda r: r.point.n),
    number("detects", 8, lambda row: row.result.mde if row.result else None, _as(".1%")),
    number("serial", 4, lambda row: row.point.karp_flatt, _as(".3f")),
    Column("MB sent", 9, _sent, raw=lambda r: r.row.sent_bytes),
    number("of form", 7, lambda row: row.row.sent_of_form, _as(".3f")),
    number("peak MB", 3, lambda row: row.row.peak_bytes, _as(".0f", 1e-6), "n/a"),
    number("kB/step", 0, lambda row: row.row.growth, _as("+.1f", 1e-3)),
    number("TFLOP/s", 2, lambda row: row.row.flops, _as(".3g", 1e-12)),
    number(MFU, 70, lambda row: row.row.mfu, _as(".2f"), "n/a"),
    number(MOST_MFU, 69, lambda r: r.row.mfu and r.row.roofline_mfu, _as(".2f"), "n/a"),
    number(ENERGY, 5, lambda r: r.row.energy_j, _as(".3g"), "n/a"),
    Column("bound", 80, _bound),
    Column("verdict", 98, _status, left=True),
)
_NAMES = Column[Named]("case", 100, lambda line: line[0], left=True)


def twin(run: RunRecord, plans: Sequence[Plan]) -> Table[LadderRow]:
    """Return the world sizes of these scaling sweeps as one table, for the chart of them."""
    rows = [row for plan in plans for row in ladder_rows(run, plan)]
    case = Column[LadderRow](
        "case", 100, lambda r: r.row.case.family + r.row.case.extras, left=True
    )
    return Table(columns=[case, *_measured(RUNGS, rows)], rows=rows)


def _measured(
    columns: Sequence[Column[LadderRow]], rows: Sequence[LadderRow]
) -> list[Column[LadderRow]]:
    """Return the columns, except for columns that need unavailable data.

    The energy needs a device that reports it, and the MFU a device with a known peak.
    """
    metered = any(row.row.energy_j is not None for row in rows)
    rated = any(row.row.mfu is not None for row in rows)
    known = {ENERGY: metered, MFU: rated, MOST_MFU: rated}
    return [column for column in columns if known.get(column.header, True)]
