"""The table of faults that were planted, and of what came after them."""

from __future__ import annotations

from statistics import median

from harness.base.numbers import si
from harness.interface.report.text import Column, rule, table, wrap
from harness.record import RunRecord, Trial
from harness.record.recovery import PARTS

#: How the parts are headed.
_HEADS = dict(zip(PARTS, ("seen", "gone", "import", "start", "met", "load", "step"), strict=True))


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """A table for each case, a line for each kind of trial; nothing where nothing was broken."""
    cases: dict[str, dict[str, list[Trial]]] = {}
    for trial in run.recoveries:
        cases.setdefault(trial.case, {}).setdefault(trial.name, []).append(trial)
    if not cases:
        return []
    out = [rule("recovery", width)]
    for case, kinds in cases.items():
        columns = [
            Column(header=case, keep=9, left=True),
            Column(header="n", keep=3),
            *(Column(header=head, keep=7) for head in _HEADS.values()),
            Column(header="in all", keep=9),
            Column(header="worst", keep=8),
            Column(header="wait", keep=5),
            Column(header="stall", keep=4),
            Column(header="", keep=9, left=True),
        ]
        rows = [_row(name.removeprefix(f"{case} "), own) for name, own in kinds.items()]
        out += table(columns, rows, width)
    note = (
        " medians, in s from the fault: seen, all gone, lost agents replaced, new ranks started,"
        " met, loaded, first step; wait = silence that must pass before it counts; stall = training"
        " stood still to save; all was equal to the bit to what was never broken, or it says so"
    )
    return [*out, *wrap(note, width, 1), ""]


def _row(name: str, own: list[Trial]) -> list[str]:
    told = "" if all(t.equal for t in own) else "NOT EQUAL"
    return [
        name,
        str(len(own)),
        *(f"{median([getattr(t, f'{part}_s') for t in own]):.2f}" for part in PARTS),
        f"{median([t.recovery_s for t in own]):.2f}",
        f"{max(t.recovery_s for t in own):.2f}",
        f"{own[0].timeout_s:g}" if own[0].timeout_s else "",
        si(median([t.stall_s for t in own]), "s"),
        told or ("" if all(t.blamed == t.rank for t in own) else "WRONG RANK"),
    ]
