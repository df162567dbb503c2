"""The table of faults that were planted, and of what came after them."""

from __future__ import annotations

from harness.record import RunRecord
from harness.recovery import PARTS, Trial
from harness.report.text import Column, rule, table, wrap
from harness.stats import median
from harness.units import si


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """A line for each kind of trial; nothing where nothing was broken."""
    found: dict[str, list[Trial]] = {}
    for trial in run.recoveries:
        found.setdefault(trial.name, []).append(trial)
    if not found:
        return []
    columns = [
        Column(header="broken and gone on", keep=9, left=True),
        Column(header="n", keep=3),
        *(Column(header=part, keep=5) for part in PARTS),
        Column(header="silent", keep=5),
        Column(header="in all", keep=9),
        Column(header="worst", keep=8),
        Column(header="stall", keep=4),
        Column(header="", keep=9, left=True),
    ]
    rows = []
    for name, own in found.items():
        told = "" if all(t.equal for t in own) else "NOT EQUAL"
        rows.append(
            [
                name,
                str(len(own)),
                *(f"{median([getattr(t, f'{part}_s') for t in own]):.2f}" for part in PARTS),
                f"{own[0].timeout_s:g}" if own[0].timeout_s else "",
                f"{median([t.recovery_s for t in own]):.2f} s",
                f"{max(t.recovery_s for t in own):.2f}",
                si(median([t.stall_s for t in own]), "s"),
                told or ("" if all(t.blamed == t.rank for t in own) else "WRONG RANK"),
            ]
        )
    note = (
        " seconds from the fault, medians: noticed, world gone, lost agents replaced, new ranks,"
        " met, loaded, built and first step; silent = what silence must last to be noticed;"
        " stall = training stood still to save; what went on was equal to the bit to what was"
        " never broken, or says so"
    )
    return [rule("recovery", width), *table(columns, rows, width), *wrap(note, width, 1), ""]
