"""Print the results of a fabric sweep: every collective operation over every set of ranks."""

from functools import partial
from statistics import median

from harness.base.formatting import si
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record import RunRecord, Swept
from harness.record.fabric import sizes, swept


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """Return a line for each world and operation, or no lines if the run swept no fabric."""
    if not run.fabric:
        return []
    table = tabled(run, named=False).lines(width)
    return [rule("fabric", width), *table, *wrap(f" {note(run)}", width, 1), ""]


def brief(run: RunRecord, width: int) -> list[str]:
    """Return one line about the largest world, or the whole table.

    The table is returned if the run measured no trainings, or if an operation gave a wrong result.
    """
    operations = swept(run.fabric)
    if not any(plan.arms for plan in run.plans) or not all(
        operation.right for operation in operations
    ):
        return lines(run, width)
    reduced = [
        operation
        for operation in operations
        if operation.operation == "all_reduce" and operation.latency_s
    ]
    if not reduced:
        return []
    largest = max(reduced, key=lambda s: sum(s.nodes))
    size = largest.largest[0].payload_bytes
    figures = f"{si(median(largest.latency_s), 's')}, {_bus(largest, payload=size)} at"
    words = f"all_reduce over {_name(largest)}: {figures} {_binary(size)} (every result checked)"
    return [*wrap(f" fabric  {words}", width, 9), ""]


def tabled(run: RunRecord, *, named: bool = True) -> Table[Swept]:
    """Return a row for each world and operation.

    With ``named`` every row names its world; otherwise only the first row of each world does.
    """
    operations = swept(run.fabric)
    shown = sizes(run.settings.device)[1:]
    firsts = {
        id(operation)
        for operation, above in zip(operations, [None, *operations], strict=False)
        if above is None or _name(operation) != _name(above)
    }

    def world(sweep: Swept) -> str:
        return _name(sweep) if named or id(sweep) in firsts else ""

    columns = [
        Column[Swept]("ranks", 9, world, left=True),
        Column("operation", 9, lambda s: s.operation, left=True),
        Column(
            "latency",
            8,
            lambda s: si(median(s.latency_s), "s") if s.latency_s else "n/a",
            raw=lambda s: median(s.latency_s) if s.latency_s else None,
        ),
        *(
            Column(
                f"bus at {_binary(size)}",
                size >> 10,
                partial(_bus, payload=size),
                raw=partial(_bps, payload=size),
            )
            for size in shown
        ),
        Column("", 9, _wrong, left=True, prose=True),
    ]
    return Table(columns=columns, rows=operations)


def note(run: RunRecord) -> str:
    """Return how the figures were measured and what they mean: transport, sweeps, definitions."""
    transports = ", ".join(dict.fromkeys(row.transport for row in run.fabric))
    sweeps = max((len({row.launch for row in s.rows}) for s in swept(run.fabric)), default=0)
    sentence = (
        f"over {transports}; every result checked; medians of {sweeps} "
        f"sweep{'s' if sweeps > 1 else ''}; bus = rate of the busiest link"
    )
    if sweeps == 1:
        sentence += "; one sweep shows no variation: --sweeps 4 shows whether a low figure persists"
    return sentence


def _binary(size: int) -> str:
    """Return a size in bytes as text, such as ``64 KiB`` or ``1 GiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if size >> power:
            return f"{size >> power} {unit}"
    return f"{size >> 10} KiB"


def _name(sweep: Swept) -> str:
    return sweep.world + sweep.network


def _bus(sweep: Swept, payload: int) -> str:
    return si(_bps(sweep, payload), "B/s")


def _bps(sweep: Swept, payload: int) -> float | None:
    rates = sweep.bus_bps(payload)
    return median(rates) if rates else None


def _wrong(sweep: Swept) -> str:
    return f"refused: {sweep.refused[:30]}" if sweep.refused else "" if sweep.right else "WRONG"
