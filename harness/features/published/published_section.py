"""The report section that compares the results of a run with published ones."""

from collections.abc import Iterator

from markupsafe import Markup

from harness.base.formatting import si
from harness.cases import metrics
from harness.features.published.published import PublishedPlace, standings
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, wrap
from harness.record import RunRecord

SECTION = dict(title="Is this normal?", anchor="published", after="scaling", place=2)


def lines(run: RunRecord, width: int) -> list[str]:
    """Return a sentence for each result with a published figure to compare it with."""
    return [line for text in _sentences(run) for line in wrap(text, width, 10)]


def html(run: RunRecord) -> Markup:
    """Render a table that compares results with published ones.

    It also names the source of each published figure and its date.
    """
    shown = standings(run)
    table = Table(
        columns=[
            Column[PublishedPlace]("case", 9, lambda s: s.case, left=True),
            Column("metric", 8, lambda s: s.metric, left=True),
            Column("measured", 9, _value),
            Column("published", 9, lambda s: s.sentence, left=True, prose=True),
            Column("by", 5, lambda s: f"{s.figure.by}, {s.figure.date}", left=True),
        ],
        rows=shown,
    )
    return table.html("measured figures among published ones") if shown else Markup("")


def _sentences(run: RunRecord) -> Iterator[str]:
    for standing in standings(run):
        yield f" normal?  {standing.case} {_value(standing)}: {standing.sentence}"


def _value(standing: PublishedPlace) -> str:
    unit = metrics.metric(standing.metric).unit
    return f"{standing.value:.2f}" if unit in ("1", "x") else si(standing.value, unit)
