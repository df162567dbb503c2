"""The table of faults that were planted, and of what came after them."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import TypeAlias

from harness.base.numbers import si
from harness.interface.report.text import Column, rule, table, wrap
from harness.record import RunRecord, Trial
from harness.record.recovery import PARTS

#: One kind of trial: its name, and its trials.
Kind: TypeAlias = tuple[str, list[Trial]]
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
        named = [(name.removeprefix(f"{case} "), trials) for name, trials in kinds.items()]
        parts = [
            Column(head, 7, partial(_median, field=f"{part}_s")) for part, head in _HEADS.items()
        ]
        columns = [
            Column[Kind]("fault", 9, lambda k: k[0], left=True),
            Column("n", 3, lambda k: str(len(k[1]))),
            *parts,
            Column("in all", 9, lambda k: _median(k, "recovery_s")),
            Column("worst", 8, lambda k: f"{max(t.recovery_s for t in k[1]):.2f}"),
            Column("wait", 5, lambda k: f"{k[1][0].timeout_s:g}" if k[1][0].timeout_s else ""),
            Column("stall", 4, lambda k: si(median(t.stall_s for t in k[1]), "s")),
            Column("", 9, _wrong, left=True),
        ]
        out += [
            *wrap(f" {case.replace('+script=', ': ')}", width, 3),
            *table(columns, named, width),
        ]
        for fault, trials in named:
            out += _continued(fault, trials, width) if trials[0].continued is not None else []
    note = (
        " medians in s from the fault on: seen = fault noticed, gone = ranks ended, import = lost"
        " agents replaced, start = new ranks started, met = process group ready, load = checkpoint"
        " loaded, step = first step; wait = silence after which a rank counts as hung; stall ="
        " training stands still to save; in rows without a mark the resumed training matches an"
        " uninterrupted one bit for bit"
    )
    return [*out, *wrap(note, width, 1), ""]


def _continued(name: str, trials: Sequence[Trial], width: int) -> list[str]:
    """How the resumed training goes on, and what was lost."""
    ways = " and ".join(sorted({str(t.continued) for t in trials}))
    lost = sorted({t.lost for t in trials if t.lost is not None})
    again = f"; {lost[-1]} updates at most are done again" if lost else ""
    return wrap(f" after {name}: the training goes on {ways}{again}", width, 3)


def _median(kind: Kind, field: str) -> str:
    return f"{median(getattr(t, field) for t in kind[1]):.2f}"


def _wrong(kind: Kind) -> str:
    if not all(t.equal or t.continued for t in kind[1]):
        return "NOT EQUAL"
    return "" if all(t.blamed == t.rank for t in kind[1]) else "WRONG RANK"
