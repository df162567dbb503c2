"""The table of recovery trials: injected faults and the time to recover from them."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TypeAlias

from markupsafe import Markup

from harness.base.documents import Json, to_doc
from harness.base.formatting import si
from harness.interface.report.tabled import Table
from harness.interface.report.templates import templates
from harness.interface.report.text import Column, legend, rule, wrap
from harness.record import RunRecord, Trial
from harness.record.recovery import PARTS

SECTION = dict(title="Recovery", anchor="recovery", after="fabric", place=1)
#: A kind of trial: its name and its trials.
Kind: TypeAlias = tuple[str, list[Trial]]
#: Column head of each part of a recovery.
_HEADS = dict(zip(PARTS, ("seen", "gone", "import", "start", "met", "load", "step"), strict=True))


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """Return a table for each case, with a row for each kind of trial.

    Return an empty list if the run has no trials.
    """
    if not run.recoveries:
        return []
    shown = [rule("recovery", width)]
    tables = tabled(run)
    for case, table in tables.items():
        shown += [*wrap(f" {case}", width, 3), *table.lines(width)]
        shown += [x for kind in table.rows for x in wrap(f" {continued(kind)}", width, 3) if x]
    heads = "  ".join(line for table in tables.values() for line in table.lines(width)[:1])
    return [*shown, *wrap(f" {note(heads)}", width, 1), ""]


def html(run: RunRecord) -> Markup:
    """Return the tables for a page."""
    tables = tabled(run)
    cases = [
        (case, table.html(f"recovery of {case}"), list(map(continued, table.rows)))
        for case, table in tables.items()
    ]
    heads = "  ".join(c.header for table in tables.values() for c in table.shown_columns)
    template = templates(Path(__file__).parent).get_template("trials.jinja")
    return Markup(template.render(cases=cases, note=note(heads))) if cases else Markup("")


def data(run: RunRecord) -> Mapping[str, Json]:
    """Return every trial, and the rows of the tables."""
    rows = {case: table.records() for case, table in tabled(run).items()}
    return {"recoveries": to_doc(run.recoveries), "recovered": rows}


def tabled(run: RunRecord) -> dict[str, Table[Kind]]:
    """Return a table for each case, with a row for each kind of trial."""
    cases: dict[str, dict[str, list[Trial]]] = {}
    for trial in run.recoveries:
        name = trial.name.removeprefix(f"{trial.case} ")
        cases.setdefault(trial.case, {}).setdefault(name, []).append(trial)
    parts = [_seconds(head, 7, f"{part}_s") for part, head in _HEADS.items()]
    columns = [
        Column[Kind]("fault", 9, lambda k: k[0], left=True),
        Column("n", 3, lambda k: str(len(k[1])), raw=lambda k: len(k[1])),
        *parts,
        _seconds("in all", 9, "recovery_s"),
        Column(
            "worst",
            8,
            lambda k: f"{max(t.recovery_s for t in k[1]):.2f}",
            raw=lambda k: max(t.recovery_s for t in k[1]),
        ),
        Column("wait", 5, lambda k: f"{k[1][0].timeout_s:.3g}" if k[1][0].timeout_s else ""),
        Column("stall", 4, lambda k: si(median(t.stall_s for t in k[1]), "s")),
        Column("", 9, _wrong, left=True, prose=True),
    ]
    return {
        case.replace("+script=", ": "): Table(columns=columns, rows=list(kinds.items()))
        for case, kinds in cases.items()
    }


#: Meanings of the columns of the table. Phases are told together.
_MEANINGS = {
    "wait": "silence after which a rank counts as hung",
    "stall": "time for which training pauses to save",
}
_PHASES = (
    "medians in s of the phases after the fault, each until: seen = fault noticed, gone = ranks"
    " ended, import = lost agents replaced, start = new ranks started, met = process group ready,"
    " load = checkpoint loaded, step = first step"
)
_EXACT = "in rows without a mark the resumed training matches an uninterrupted one bit for bit"


def note(header: str) -> str:
    """Return the meanings of the columns that ``header`` shows."""
    return "; ".join(filter(None, [_PHASES, legend(_MEANINGS, header), _EXACT]))


def continued(kind: Kind) -> str:
    """Return a sentence on how a resumed script continues and how many updates it repeats.

    Return an empty string for trials of cases, whose results are compared bit for bit.
    """
    name, trials = kind
    if trials[0].continued is None:
        return ""
    ways = " and ".join(sorted({str(trial.continued) for trial in trials}))
    lost = sorted({trial.lost for trial in trials if trial.lost is not None})
    again = f"; at most {lost[-1]} updates are computed again" if lost else ""
    return f"after {name}: the training continues {ways}{again}"


def _seconds(head: str, keep: int, field: str) -> Column[Kind]:
    """Return a column with the median of a field of the trials, in seconds."""

    def value(kind: Kind) -> float:
        return float(median(getattr(trial, field) for trial in kind[1]))

    return Column(head, keep, lambda kind: f"{value(kind):.2f}", raw=value)


def _wrong(kind: Kind) -> str:
    """Return a mark for trials whose result or blamed rank is wrong, or an empty string."""
    if not all(trial.equal or trial.continued for trial in kind[1]):
        return "NOT EQUAL"
    return "" if all(trial.blamed == trial.rank for trial in kind[1]) else "WRONG RANK"
