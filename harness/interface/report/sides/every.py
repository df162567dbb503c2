"""The tables of plans whose cases stand side by side: one list for every kind of report."""

from harness.interface.report.sides import batches, beside, codecs
from harness.interface.report.sides.titled import TitledTable
from harness.record import RunRecord


def tables(run: RunRecord) -> list[TitledTable]:
    return [*beside.tables(run), *codecs.tuned_tables(run), *batches.tables(run)]


def lines(run: RunRecord, width: int) -> list[str]:
    """For a terminal."""
    return [line for table in tables(run) for line in table.lines(width)]
