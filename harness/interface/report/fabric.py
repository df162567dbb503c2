"""The fabric's tables: every operation over every world, and pairs of nodes with what is slow."""

from collections.abc import Sequence
from functools import partial
from statistics import median

from harness.analysis.slow_nodes import told
from harness.base.numbers import si
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record import RunRecord, Swept
from harness.record.fabric import Paired, Suspects, sizes, swept


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """A line for each world and operation; nothing where nothing was swept."""
    if not run.fabric:
        return []
    table = tabled(run, named=False).lines(width)
    return [rule("fabric", width), *table, *wrap(f" {note(run)}", width, 1), ""]


def tabled(run: RunRecord, *, named: bool = True) -> Table[Swept]:
    """A row for each world and operation; all ``named``, or only the first of each world."""
    operations = swept(run.fabric)
    shown = sizes(run.settings.device)[1:]
    firsts = {id(s) for s, above in zip(operations, [None, *operations], strict=False)
              if above is None or _name(s) != _name(above)}  # fmt: skip

    def world(one: Swept) -> str:
        return _name(one) if named or id(one) in firsts else ""

    columns = [
        Column[Swept]("ranks", 9, world, left=True),
        Column("operation", 9, lambda s: s.operation, left=True),
        Column(
            "latency", 8, lambda s: si(median(s.latency_s), "s") if s.latency_s else "n/a",
            raw=lambda s: median(s.latency_s) if s.latency_s else None,
        ),
        *(
            Column(
                f"bus at {_binary(size)}", size >> 10, partial(_bus, payload=size),
                raw=partial(_bps, payload=size),
            )
            for size in shown
        ),
        Column("", 9, _wrong, left=True),
    ]  # fmt: skip
    return Table(columns=columns, rows=operations)


def note(run: RunRecord) -> str:
    """Over what was measured, how often, and what the figures are."""
    transports = ", ".join(dict.fromkeys(r.transport for r in run.fabric))
    sweeps = max((len({r.launch for r in s.rows}) for s in swept(run.fabric)), default=0)
    out = (
        f"over {transports}; every result checked; medians of {sweeps} "
        f"sweep{'s' if sweeps > 1 else ''}; bus = what the busiest link carries"
    )
    if sweeps == 1:
        out += "; one sweep has no spread: --sweeps 4 shows whether a low figure stays low"
    return out


def _binary(size: int) -> str:
    """``64 KiB``, ``1 GiB``"""
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if size >> power:
            return f"{size >> power} {unit}"
    return f"{size >> 10} KiB"


def _name(one: Swept) -> str:
    return one.world + one.network


def _bus(one: Swept, payload: int) -> str:
    return si(_bps(one, payload), "B/s")


def _bps(one: Swept, payload: int) -> float | None:
    rates = one.bus_bps(payload)
    return median(rates) if rates else None


def _wrong(one: Swept) -> str:
    return f"refused: {one.refused[:30]}" if one.refused else "" if one.right else "WRONG"


#: Pairs that are shown, the slowest first.
SHOWN = 6


def pairs(suspects: Suspects, width: int) -> list[str]:
    """The slowest pairs, then each slow node and link with its evidence, then the costs."""
    timed = [p for p in suspects.pairs if p.time_s is not None]
    if not timed:
        return [" no pair of nodes was measured to its end"]
    usual = {r: median(p.time_s or 0.0 for p in timed if p.round == r) for r in _rounds(timed)}

    def over(p: Paired) -> float:
        return (p.time_s or 0.0) / usual[p.round] - 1

    columns = [
        Column[Paired]("round", 5, lambda p: str(p.round + 1)),
        Column("pair", 30, lambda p: f"{p.a} - {p.b}", left=True),
        Column("step" if suspects.case else "all-reduce", 8, lambda p: si(p.time_s or 0.0, "s")),
        Column("over usual", 8, lambda p: f"{over(p):+.1%}"),
    ]
    if not suspects.case:
        columns.append(Column("bus", 8, lambda p: "n/a" if p.bps is None else si(p.bps, "B/s")))
    rows = sorted(timed, key=lambda p: -over(p))[:SHOWN]
    what = suspects.case or "all-reduce"
    out = [rule(f"pairs: {what}", width), *Table(columns=columns, rows=rows).lines(width)]
    if len(timed) > SHOWN:
        out.append(f" ... and {len(timed) - SHOWN} pairs that were faster")
    for one in suspects.slow:
        kind = "NODE" if len(one.hosts) == 1 else "LINK"
        out += wrap(f" {kind}  {told.words(one)}; odds {_odds(one.log_evidence)}", width, 7)
    if not suspects.slow:
        out.append(
            f" no node and no link is {told.least(suspects.case):.0%} slower than the others"
        )
    failed = len(suspects.pairs) - len(timed)
    broke = f", {failed} of them broke" if failed else ""
    out.append(
        f" {len(suspects.pairs)} pairs{broke} in {len(_rounds(suspects.pairs))} rounds,"
        f" {2 * len(suspects.pairs)} node-launches"
    )
    return out


def _rounds(pairs: Sequence[Paired]) -> list[int]:
    return sorted({p.round for p in pairs})


def _odds(log_evidence: float) -> str:
    """``4,000 : 1``, and from a million on its power of ten."""
    power = log_evidence / 2.302585
    return f"10^{power:.0f} : 1" if power >= 6 else f"{10**power:,.0f} : 1"
