"""Batches to the same loss: a line each, and where a larger one stops paying."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.analysis.choices import critical
from harness.cases import Plan
from harness.cases.ladders import CRITICAL
from harness.interface.report.sides.titled import TitledTable
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column
from harness.record import RunRecord

#: A batch, and the samples that each launch needed.
Needed = tuple[int, Sequence[float]]


def plans(run: RunRecord) -> list[Plan]:
    return [plan for plan in run.plans if plan.name.endswith(CRITICAL)]


def table(samples: Sequence[Needed]) -> Table[Needed]:
    least = min((_mean(needed) for _, needed in samples), default=1.0)
    return Table(
        columns=[
            Column("batch", 99, lambda n: str(n[0]), raw=lambda n: n[0]),
            Column("samples to loss", 95, lambda n: f"{_mean(n[1]):.0f}"),
            Column("steps", 90, lambda n: f"{_mean(n[1]) / n[0]:.0f}"),
            Column("samples v least", 80, lambda n: f"{_mean(n[1]) / least:.2f}x"),
            Column("launches", 60, lambda n: str(len(n[1]))),
        ],
        rows=samples,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def note(samples: Sequence[Needed]) -> str:
    """The critical batch with its interval, or why there is none."""
    fitted = critical.critical_batch(dict(samples))
    if fitted is None:
        return f"critical batch: not said, {critical.FEWEST} batches have to come to the loss"
    if math.isinf(fitted.batch):
        return f"critical batch: above {max(batch for batch, _ in samples)}, samples do not grow"
    high = "any" if math.isinf(fitted.high) else f"{fitted.high:.0f}"
    return (
        f"critical batch: {fitted.batch:.0f} samples [{fitted.low:.0f}, {high}], of this loss;"
        " twice the fewest samples are needed there"
    )


def tables(run: RunRecord) -> Iterator[TitledTable]:
    """The table of each such plan, and its note."""
    for plan in plans(run):
        samples = sorted(critical.samples_to_loss(run, plan).items())
        if samples:
            yield TitledTable(title=plan.name, table=table(samples), notes=[note(samples)])
