"""The fabric's table: latency and bandwidth of every operation over every world."""

from functools import partial
from statistics import median

from harness.base.numbers import si
from harness.interface.report.text import Column, rule, table, wrap
from harness.record import RunRecord, Swept
from harness.record.fabric import sizes, swept


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """A line for each world and operation; nothing where nothing was swept."""
    operations = swept(run.fabric)
    if not operations:
        return []
    shown = sizes(run.settings.device)[1:]
    firsts = {id(s) for s, above in zip(operations, [None, *operations], strict=False)
              if above is None or _name(s) != _name(above)}  # fmt: skip
    columns = [
        Column[Swept]("ranks", 9, lambda s: _name(s) if id(s) in firsts else "", left=True),
        Column("operation", 9, lambda s: s.operation, left=True),
        Column("latency", 8, lambda s: si(median(s.latency_s), "s") if s.latency_s else "n/a"),
        *(
            Column(f"bus at {_binary(size)}", size >> 10, partial(_bus, payload=size))
            for size in shown
        ),
        Column("", 9, _wrong, left=True),
    ]
    transports = ", ".join(dict.fromkeys(r.transport for r in run.fabric))
    sweeps_ = max(len({r.launch for r in one.rows}) for one in operations)
    note = (
        f" over {transports}; every result checked; medians of {sweeps_} "
        f"sweep{'s' if sweeps_ > 1 else ''}; bus = what the busiest link carries"
    )
    if sweeps_ == 1:
        note += "; one sweep has no spread: --sweeps 4 shows whether a low figure stays low"
    return [rule("fabric", width), *table(columns, operations, width), *wrap(note, width, 1), ""]


def _binary(size: int) -> str:
    """``64 KiB``, ``1 GiB``"""
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if size >> power:
            return f"{size >> power} {unit}"
    return f"{size >> 10} KiB"


def _name(one: Swept) -> str:
    return one.world + one.network


def _bus(one: Swept, payload: int) -> str:
    rates = one.bus_bps(payload)
    return si(median(rates), "B/s") if rates else "n/a"


def _wrong(one: Swept) -> str:
    return f"refused: {one.refused[:30]}" if one.refused else "" if one.right else "WRONG"
