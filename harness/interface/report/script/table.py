"""Build the table of a user's script: its steps, their times, and the checks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from harness.analysis.judging.contrast_data import timed
from harness.analysis.samples.anatomy import APART
from harness.analysis.script import same_training
from harness.analysis.script.exchanges import SMALL
from harness.base.formatting import si
from harness.cases.script import ACCEPTABLE
from harness.interface.report import text
from harness.interface.report.script.checks import checks
from harness.interface.report.script.remark import remarks
from harness.interface.report.script.row import ScriptRow
from harness.interface.report.script.steps import mean_parts
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column, rule, wrap
from harness.record import Purpose, RunRecord


@dataclass(frozen=True)
class ScriptSection:
    """A script on a page: its name, its table, and its checks and remarks."""

    name: str
    table: Markup
    notes: Sequence[str]


def lines(run: RunRecord, width: int = 100) -> list[str]:
    """Return the lines of a table for each script; empty if no script was run."""
    shown: list[str] = []
    for rows in _scripts(run):
        name = wrap(f" {text.named(rows[0].arm.case)}", width, 3)
        table = Table(columns=_COLUMNS, rows=rows)
        shown += [
            *name,
            *table.lines(width),
            *wrap(f" {_note(rows)}", width, 1),
            *(
                line
                for label, what in _labelled(rows)
                for line in wrap(f" {label:12}{what}", width, 13)
            ),
            "",
        ]
    return [rule("your script", width), *shown] if shown else []


def sections(run: RunRecord) -> list[ScriptSection]:
    """Return the sections for a page."""
    return [
        ScriptSection(
            name=rows[0].arm.case.family + rows[0].arm.case.extras,
            table=Table(columns=_COLUMNS, rows=rows).html("your script"),
            notes=[_note(rows), *(f"{label}: {what}" for label, what in _labelled(rows))],
        )
        for rows in _scripts(run)
    ]


def _scripts(run: RunRecord) -> Iterator[list[ScriptRow]]:
    """Yield the world sizes of each script that was run; of calibration launches if no others
    exist.
    """
    for plan in run.plans:
        launches = [x for x in timed(run, plan, None) if x.usable and x.ranks]
        if not launches:
            pilots = timed(run, plan, None, Purpose.PILOT)
            launches = [pilot for pilot in pilots if pilot.usable and pilot.ranks]
        arms = [arm for arm in plan.arms if arm.case.script]
        of_arms = [
            ScriptRow(arm, [launch for launch in launches if launch.arm == arm.name])
            for arm in arms
        ]
        if rows := [row for row in of_arms if row.launches]:
            yield rows


def _step(row: ScriptRow) -> str:
    """Return the mean step time: the slowest rank's window over its steps, as for throughput."""
    means = [
        max(rank.window_s for rank in launch.ranks) / launch.steps.count
        for launch in row.launches
        if launch.steps
    ]
    return si(fmean(means), "s")


def _exchanged(row: ScriptRow) -> str:
    """Return the collectives of a step, those that carry gradients first, then by their bytes."""
    kinds = sorted(
        row.seen.collectives.items(),
        key=lambda kind: (
            kind[0] not in GRADIENTS or kind[1].payload_bytes < SMALL,
            -kind[1].payload_bytes,
        ),
    )
    shown = [
        (f"{key} {si(float(issued.payload_bytes), 'B')}" if issued.payload_bytes else key)
        + (f" in {issued.count}" if issued.count > 1 else "")
        for key, issued in kinds
    ]
    return f"{row.arm.case.world}: {', '.join(shown)} in a step" if shown else ""


_COLUMNS: Sequence[Column[ScriptRow]] = (
    Column[ScriptRow]("ranks", 9, lambda r: r.arm.case.world),
    Column("samples/step", 8, lambda r: f"{r.samples:.4g}"),
    Column("step", 9, _step),
    Column("updates of a step", 7, lambda r: ", ".join(r.seen.optimizers), left=True),
)
#: Maps the label of each check whose failure a user can accept to the first word of the check's
#: text. If the failure was accepted, the check is not listed as passed.
_HOLDS = {name: name for name in ACCEPTABLE} | {
    "start": "one start", "gradients": "gradient",
}  # fmt: skip
#: The collectives that carry gradients.
GRADIENTS = ("all_reduce", "reduce_scatter")
NOTE = "step = the window over its steps: evaluations and logs in it are included"
PILOTS = "by calibration launches, one or two of each world: nothing is compared"


def _note(rows: Sequence[ScriptRow]) -> str:
    """Return the note that explains the figures of the table."""
    launches = [launch for row in rows for launch in row.launches]
    only_pilots = all(launch.purpose is Purpose.PILOT for launch in launches)
    return f"{NOTE}; {PILOTS}" if only_pilots else NOTE


def _labelled(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str]]:
    """Yield lines with their labels.

    The lines list the parts of a step, what it exchanges, the checks that passed on every launch,
    the checks that could not be made, the accepted failures, and the remarks.
    """
    if parts := _parts(rows[-1]):
        yield "a step", parts
    if exchanged := _exchanged(rows[-1]):
        yield "exchanged", exchanged
    yield from _checked(rows)
    worlds_of: dict[str, list[str]] = {}
    for row in rows:
        for sentence in _accepted(row, rows[0]):
            worlds_of.setdefault(sentence, []).append(row.arm.case.world)
    for sentence, worlds in worlds_of.items():
        yield "accepted", f"{', '.join(worlds)}: {sentence}"
    for sentence in remarks(rows):
        yield "noticed", sentence


def _checked(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str]]:
    """Yield the checks that passed, and those that could not be made, each as one line."""
    checked = []
    missing = []
    accepted = {x.partition(":")[0] for row in rows for x in _accepted(row, rows[0])}
    for what, why_not in checks(rows):
        if why_not is None and not any(what.startswith(_HOLDS[label]) for label in accepted):
            checked.append(what)
        elif why_not is None:
            continue  # an accepted failure has its own line
        else:
            missing.append(f"{what} ({why_not})" if why_not else what)
    yield "checked", ", ".join(checked)
    if missing:
        yield "not checked", ", ".join(missing)


def _parts(row: ScriptRow) -> str:
    """Return the mean time of each part of a step of a world size, the largest first."""
    times = mean_parts(row.launches)
    apart = sorted(((times[part], part) for part in APART if part in times), reverse=True)
    shown = ", ".join(f"{part} {si(took_s, 's')}" for took_s, part in apart)
    return f"{row.arm.case.world}: {shown}" if shown else ""


def _accepted(row: ScriptRow, first: ScriptRow) -> list[str]:
    """Return the messages that the user accepted, each once.

    The messages concern single launches, and differences from launches of the smallest world size.
    """
    of_launches = [sentence for launch in row.launches for sentence in launch.accepted]
    differences = same_training.accepted(row.arm.case, row.launches, first.launches)
    return list(dict.fromkeys([*of_launches, *(differences if row is not first else ())]))
