"""Print the samples that each batch size needs to reach a loss, and the critical batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.analysis.choices import batches
from harness.analysis.choices.batches import NoiseScale
from harness.cases import Plan
from harness.cases.ladders import CRITICAL
from harness.interface.report.tabled import Table, TitledTable
from harness.interface.report.text import Column
from harness.record import RunRecord

#: A batch size, the samples that each launch needed to reach the loss, and the noise scale of the
#: gradients at this batch size.
Needed = tuple[int, Sequence[float], NoiseScale | None]


def plans(run: RunRecord) -> list[Plan]:
    return [plan for plan in run.plans if plan.name.endswith(CRITICAL)]


def table(samples: Sequence[Needed]) -> Table[Needed]:
    least = min((_mean(needed) for _, needed, _ in samples), default=1.0)
    return Table(
        columns=[
            Column("batch", 99, lambda n: str(n[0]), raw=lambda n: n[0]),
            Column("samples to loss", 95, lambda n: f"{_mean(n[1]):.0f}"),
            Column("steps", 90, lambda n: f"{_mean(n[1]) / n[0]:.0f}"),
            Column("samples v least", 80, lambda n: f"{_mean(n[1]) / least:.2f}x"),
            Column("launches", 60, lambda n: str(len(n[1]))),
            Column("noise scale [95%]", 85, lambda n: "n/a" if n[2] is None else str(n[2])),
        ],
        rows=samples,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def note(samples: Sequence[Needed]) -> str:
    """Return the critical batch size with its interval, or why there is none."""
    fitted = batches.critical_batch({batch: needed for batch, needed, _ in samples})
    if fitted is None:
        return (
            f"critical batch: unknown, {batches.FEWEST_BATCHES} batch sizes have to reach the loss"
        )
    if math.isinf(fitted.batch):
        return f"critical batch: above {max(batch for batch, _, _ in samples)}, samples do not grow"
    high = "any" if math.isinf(fitted.high) else f"{fitted.high:.0f}"
    return (
        f"critical batch: {fitted.batch:.0f} samples [{fitted.low:.0f}, {high}], for this loss; it"
        " needs twice as many samples as very small batches; the noise scale of a row predicts the"
        " critical batch from the gradients of that row's training alone"
    )


def tables(run: RunRecord) -> Iterator[TitledTable]:
    """Yield the table of each plan that searches the critical batch size, with its note."""
    for plan in plans(run):
        by_batch = batches.by_batch(run, plan)
        samples = [
            (batch, needed, by_batch.get(batch))
            for batch, needed in sorted(batches.samples_to_loss(run, plan).items())
        ]
        if samples:
            yield TitledTable(title=plan.name, table=table(samples), notes=[note(samples)])
