"""Two runs side by side in the terminal."""

from __future__ import annotations

from harness.analysis.compare import DRIFT, Comparison
from harness.base.numbers import rate, si
from harness.interface.report.text import Column, table, wrap
from harness.record import RunRecord
from harness.spec.metrics import METRICS

_COLUMNS = (
    Column(header="case", keep=10, left=True),
    Column(header="ranks", keep=9),
    Column(header="A", keep=7),
    Column(header="B", keep=7),
    Column(header="B/A [95%]", keep=8, left=True),
    Column(header="eff A", keep=3),
    Column(header="eff B", keep=3),
    Column(header="reading", keep=9, left=True),
)


def lines(a: RunRecord, b: RunRecord, found: Comparison, width: int) -> list[str]:
    """Machines, what differs, one row per case, and the geometric mean over what both ran."""
    out = []
    for name, run in (("A", a), ("B", b)):
        torch = run.software.get("torch", "n/a")
        out.append(
            f" {name}  {run.machine.key}  {run.machine.title}  torch {torch}  {run.started_at[:10]}"
        )
    for text in found.forced:
        out += wrap(f" FORCED   not comparable: {text}", width, 10)
    for text in found.differs:
        out += wrap(f" differs: {text}", width, 10)
    unit = METRICS[found.metric].unit
    rows = []
    for row in sorted(found.rows, key=lambda r: (r.case.family, r.case.world_size)):
        ratio = "-"
        if row.ratio is not None:
            span = "n/a" if row.low is None else f"{row.low:.2f}, {row.high:.2f}"
            ratio = f"{row.ratio:.2f} [{span}]"
        rows.append(
            [
                row.case.family + row.case.extras,
                row.case.world,
                _value(row.a, unit),
                _value(row.b, unit),
                ratio,
                "" if row.efficiency_a is None else f"{row.efficiency_a:.3f}",
                "" if row.efficiency_b is None else f"{row.efficiency_b:.3f}",
                str(row.reading),
            ]
        )
    for i in range(len(rows) - 1, 0, -1):
        if rows[i][0] == rows[i - 1][0]:
            rows[i][0] = ""
    out += ["", *(table(_COLUMNS, rows, width) if rows else [" no case in either run"]), ""]
    both = sum(r.ratio is not None for r in found.rows)
    if found.mean is not None:
        out.append(
            f" {found.metric}: geometric mean over the {both} cases both ran:"
            f" {found.mean:.3f} [{found.mean_low:.3f}, {found.mean_high:.3f}]"
        )
    else:
        out.append(" no case was run by both: nothing to compare")
    out.append(
        f" better or worse: the whole interval lies more than {DRIFT:.0%} from 1, since runs drift"
    )
    for text in found.not_compared:
        out += wrap(f" not compared: {text}", width, 15)
    return out


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return rate(value) if unit == "samples/s" else si(value, unit)
