"""The fabric's table: latency and bandwidth of every operation over every world."""

from __future__ import annotations

from statistics import median

from harness.base.numbers import si
from harness.interface.report.text import Column, rule, table
from harness.record import RunRecord
from harness.record.fabric import sizes, swept


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """A line for each world and operation; nothing where nothing was swept."""
    found = swept(run.fabric)
    if not found:
        return []
    shown = sizes(run.settings.device)[1:]
    columns = [
        Column(header="ranks", keep=9, left=True),
        Column(header="operation", keep=9, left=True),
        Column(header="latency", keep=8),
        *(Column(header=f"bus at {size >> 10} KiB", keep=size >> 10) for size in shown),
        Column(header="", keep=9, left=True),
    ]
    rows, last = [], ""
    for one in found:
        name = one.world + one.network
        refused = one.refused
        latency = one.latency_s
        rows.append(
            [
                name if name != last else "",
                one.operation,
                si(median(latency), "s") if latency else "n/a",
                *(
                    si(median(found_), "B/s") if (found_ := one.bus_bps(size)) else "n/a"
                    for size in shown
                ),
                f"refused: {refused[:30]}" if refused else "" if one.right else "WRONG",
            ]
        )
        last = name
    transports = ", ".join(dict.fromkeys(r.transport for r in run.fabric))
    sweeps_ = max(len({r.launch for r in one.rows}) for one in found)
    note = (
        f" over {transports}; every result checked; medians of {sweeps_} "
        f"sweep{'s' if sweeps_ > 1 else ''}; bus = what the busiest link carries"
    )
    return [rule("fabric", width), *table(columns, rows, width), note, ""]
