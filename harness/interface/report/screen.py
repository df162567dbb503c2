"""Print a run on one screen: its result, the cause, the evidence and the next command.

    the headline, and the causes of inconclusive results
    a line for each threshold (without thresholds: for each world size), simulated ones apart
    the largest loss of time, and a remedy
    the page, and the next command

Everything else is on the page and in ``report --every`` (``tables``).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis import earlier
from harness.analysis.judging import notices
from harness.analysis.judging.points import piloted
from harness.analysis.ladder import LadderRow, in_table, ladder_rows
from harness.analysis.reached import reached
from harness.analysis.results import Result, defects, required, results
from harness.analysis.rungs import Rung, rungs
from harness.analysis.timeline.advice import advice
from harness.base.formatting import duration
from harness.cases import Reach, metrics
from harness.interface.report import (
    fabric,
    figures,
    script,
    sections,
    side_by_side,
    timeline,
    topology,
)
from harness.interface.report.headline import brief, decide, headline, why_open
from harness.interface.report.text import (
    Column,
    rule,
    short_name,
    shortened,
    table,
    wrap,
    wrap_command,
)
from harness.record import Reason, RunRecord, Status
from harness.record.outcome import SEVERITY

#: The largest number of verdicts on one screen. The worst are shown, the others are counted.
MOST_ROWS = 14
#: The largest number of world sizes with a time budget, and of notices, on one screen.
FEW = 3
#: Scaling efficiency above which a world size lost too little time for a line about it.
KEEPS = 0.97
#: Terminal width, in characters, from which the columns ``speedup`` and ``attains`` are shown.
WIDE = 100
#: The shortest length, in characters, to which a case's name is shortened.
LEAST_NAME = 24
#: The beginning of the further lines of a long name, and the largest number of its lines.
CONTINUED = " " * 4
MOST_LINES = 3


#: The explanation after the heading of a metric against a baseline.
_MEANINGS = {
    ("efficiency", "plain"): " (throughput per rank, relative to one device)",
    ("communication_cost", "rung"): " (share of a step that is saved without communication)",
}


@dataclass(frozen=True, kw_only=True)
class ScreenRow:
    """A result as one line of the screen."""

    result: Result
    name: str
    value: str
    bound: str = ""
    speedup: str = ""
    mfu: str = ""
    attains: str = ""

    @property
    def caught(self) -> bool:
        """Whether this is a negative control that was detected."""
        return self.result.reason is Reason.CAUGHT

    @property
    def status(self) -> str:
        """The status, with a mark if a value without a threshold is unreliable."""
        result = self.result
        if result.waived:
            return f"{result.status} (waived)"
        if self.caught:
            return str(result.counts)
        if result.reason is Reason.WOULD_FAIL:
            return f"{result.status} (would fail)"
        doubtful = result.rule is None and result.status is Status.RECORDED and result.doubt
        return f"{result.status} ~" if doubtful else str(result.status)


def lines(
    run: RunRecord, folder: Path, rerun: str, width: int = 80, *, page: str | None = None
) -> list[str]:
    """Return the lines that are printed at the end of a run."""
    first = headline(run)
    causes = [cause for cause in why_open(run) if not first.endswith(cause)]
    shown = [rule("scaling", width, "="), *wrap(f" {first}", width, 1)]
    shown += [line for cause in causes for line in wrap(f" why   {cause}", width, 7)]
    shown += [*wrap(f" on    {measured_on(run)}", width, 7), ""]
    shown += _rows(run, width)
    shown += side_by_side.lines(run, width)
    shown += [*script.lines(run, width), *fabric.brief(run, width)]
    shown += topology.lines(run, width) if run.fabric and not run.plans else []
    shown += [*sections.lines(run, width), *_spent(run, width), *_noticed(run, folder, width)]
    shown += [line for remark in sections.remarks(run) for line in wrap(f" {remark}", width, 3)]
    return [*shown, *_next(run, folder, rerun, width, page)]


def measured_on(run: RunRecord) -> str:
    """Return ``2 cores of AMD EPYC · torch 2.13.0+cpu gloo · 152 launches in 4:11``."""
    backends = sorted({arm.case.backend for plan in run.plans for arm in plan.arms})
    timed = len(run.launches)
    faults = len(run.recoveries)
    events = f"{faults} fault{'s' * (faults != 1)} in " if faults else ""
    if timed:
        events = f"{timed} launch{'es' * (timed != 1)} in "
    parts = [
        run.machine.title,
        f"torch {run.software.get('torch', 'n/a')} {' '.join(backends)}".strip(),
        f"{events}{duration(run.elapsed_s)}",
    ]
    return " · ".join(parts)


def _rows(run: RunRecord, width: int) -> list[str]:
    """Return the rows of results that thresholds judge, and of plans without a threshold.

    A heading names the metric and the baseline of the rows below it. Simulated results come last
    under a separate heading.
    """
    every = _screen_rows(run)
    missing = [] if run.complete else [row for row in every if row.value == "n/a"]
    shown, hidden = _fitting([row for row in every if row not in missing])
    unmeasured = [f" {len(missing)} thresholds were not measured"] if missing else []
    if not shown:
        return [*unmeasured, ""] if missing else []
    header, *laid_out = _laid_out(shown, width)
    line_of = dict(zip(map(id, shown), laid_out, strict=True))
    out = [header]
    for stand_in in (False, True):
        apart = [row for row in shown if row.result.stand_in is stand_in]
        if apart and stand_in:
            out.append(f" simulated ({', '.join(_kinds(run))}): not representative of hardware")
        for heading, rows in _grouped(apart).items():
            out.append(heading)
            out += [line for row in rows for line in line_of[id(row)].split("\n")]
    if hidden:
        words = ", ".join(f"{count} {status}" for status, count in hidden.items())
        out.append(f" and {words} (--every)")
    out += unmeasured
    if doubts := [row.result.doubt for row in shown if row.status.endswith(" ~")]:
        out += wrap(f" ~ treat as unreliable: {doubts[0]}", width, 3)
    return [*out, ""]


def _kinds(run: RunRecord) -> list[str]:
    """Return the kinds of simulated hardware that this run used."""
    cases = [arm.case for plan in run.plans for arm in plan.arms]
    return sorted({stand_in for case in cases for stand_in in run.stand_ins(case)})


def _grouped(rows: Sequence[ScreenRow]) -> Mapping[str, list[ScreenRow]]:
    """Group rows by the heading with their metric and baseline, worst group first."""
    groups: dict[str, list[ScreenRow]] = {}
    for row in sorted(rows, key=lambda row: SEVERITY.index(row.result.counts)):
        groups.setdefault(_heading(row.result), []).append(row)
    return groups


def _heading(result: Result) -> str:
    if result.reason is Reason.CAUGHT:
        return " negative control"
    return f" {figures.metric(result)}{_MEANINGS.get((result.metric, result.against), '')}"


def shown_results(run: RunRecord) -> list[Result]:
    """Return every result that has a row on the screen if there is enough space."""
    caught = [result for result in results(run) if result.reason is Reason.CAUGHT]
    simulated = [r for r in results(run) if r.simulated and r.rule and r not in caught]
    ablated = [r for r in results(run) if r.metric == "communication_cost" and not r.rule]
    asked = [*defects(run), *required(run), *simulated]
    judged = {result.plan for result in required(run)}
    ruled = {(result.plan, result.case_hash) for result in asked}
    unruled = [
        rung.result
        for plan in run.plans
        for rung in ladder_rows(run, plan)
        if plan.hash not in judged
        and (plan.hash, rung.row.case.hash) not in ruled
        and rung.result is not None
    ]
    return [*asked, *caught, *unruled, *ablated]


def _screen_rows(run: RunRecord) -> list[ScreenRow]:
    every = shown_results(run)
    rungs_of = {
        (plan.hash, rung.row.case.hash): rung
        for plan in run.plans
        for rung in ladder_rows(run, plan)
    }
    names = _names(run, [result.case_hash for result in every])
    attained = {
        (result.plan, result.case_hash): f"{result.value:.2f}"
        for result in results(run)
        if metrics.metric(result.metric).of_fabric and result.value is not None
    }
    rows = []
    for result in every:
        place = (result.plan, result.case_hash)
        rung = rungs_of.get(place)
        of_point = rung is not None and in_table(result, rung.point.against)
        rows.append(
            ScreenRow(
                result=result,
                name=names.get(result.case_hash, result.case),
                value=_value(run, result),
                bound="" if result.reason is Reason.CAUGHT else result.bound,
                speedup=f"{rung.point.speedup:.2f}x" if rung is not None and of_point else "",
                mfu=_mfu(rung),
                attains=attained.get(place, ""),
            )
        )
    return _merged(rows)


def _merged(rows: Sequence[ScreenRow]) -> list[ScreenRow]:
    """Return the rows, one for all thresholds that judge the same figure in the same way."""
    alike: dict[tuple[str, ...], ScreenRow] = {}
    for row in rows:
        result = row.result
        key = (result.plan, result.contrast, result.metric, row.name, row.value, row.status)
        first = alike.setdefault(key, row)
        if row.bound and row.bound not in first.bound.split(", "):
            alike[key] = replace(first, bound=", ".join(filter(None, [first.bound, row.bound])))
    return list(alike.values())


def _value(run: RunRecord, result: Result) -> str:
    """Return the figure, or the estimate from calibration launches if nothing else was measured."""
    if result.reason is Reason.CAUGHT:
        return "detected, as expected"
    if result.value is None and result.status is Status.INCONCLUSIVE:
        return _by_pilots(run, result) or "n/a"
    return figures.figure(result, ".2f") or "n/a"


def _names(run: RunRecord, cases: Sequence[str]) -> dict[str, str]:
    """Return a short unique name for each case, by hash.

    The name is the family and the ranks. It is the full name if several cases have the same family
    and ranks.
    """
    known = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    hashes = [digest for digest in dict.fromkeys(cases) if digest in known]
    short = {
        digest: f"{known[digest].family}@{known[digest].world.removesuffix('cpu')}"
        for digest in hashes
    }
    count = Counter(short.values())
    return {
        digest: short[digest] + known[digest].extras if count[short[digest]] > 1 else short[digest]
        for digest in hashes
    }


def _by_pilots(run: RunRecord, result: Result) -> str:
    """Return the estimate from calibration launches, or an empty text if these measured nothing."""
    plan = run.plan_of.get(result.plan)
    contrasts = () if plan is None else plan.contrasts
    for contrast in contrasts:
        if contrast.name == result.contrast:
            assert plan is not None
            value = piloted(run, plan, contrast)
            return "" if value is None else f"{value:.2f} estimated"
    return ""


def _mfu(rung: LadderRow | None) -> str:
    """Return the MFU, or an empty text if the device's peak is unknown."""
    return "" if rung is None or rung.row.mfu is None else f"{rung.row.mfu:.2f}"


def _fitting(rows: Sequence[ScreenRow]) -> tuple[list[ScreenRow], Counter[str]]:
    """Return the worst rows that fit the screen, and the number of other rows by status."""
    ordered = sorted(rows, key=lambda row: (SEVERITY.index(row.result.counts), row.result.stand_in))
    return ordered[:MOST_ROWS], Counter(row.status for row in ordered[MOST_ROWS:])


def _laid_out(rows: Sequence[ScreenRow], width: int) -> list[str]:
    """Return the header and the lines of each row, in one text. Figures are never shortened."""
    columns: list[Column[ScreenRow]] = [
        Column("value [95% limits]", 99, lambda row: row.value, left=True),
        Column("threshold", 97, lambda row: row.bound),
        Column("MFU", 94, lambda row: row.mfu),
        Column("verdict", 98, lambda row: row.status, left=True),
    ]
    if width >= WIDE:
        columns.insert(0, Column("speedup", 95, lambda row: row.speedup))
        columns.insert(3, Column("attains", 93, lambda row: row.attains))
    columns = [column for column in columns if any(column.cell(row) for row in rows)]
    taken = sum(
        2 + max(len(column.header), *(len(column.cell(row)) for row in rows)) for column in columns
    )
    room = max(LEAST_NAME, width - taken - 3)
    name = Column[ScreenRow](
        " case @ ranks", 100, lambda row: f" {_fitted(row.name, room)}", left=True
    )
    header, *lines = table([name, *columns], rows, width)
    laid_out: list[str] = []
    for line in lines:
        if line.startswith(CONTINUED):
            laid_out[-1] += f"\n{line}"
        else:
            laid_out.append(line)
    return [header, *laid_out]


def _fitted(name: str, room: int) -> str:
    """Return a name on as many lines of ``room`` characters as it needs, at most ``MOST_LINES``.

    A name that is longer still loses its middle.
    """
    lines = [""]
    for part in re.split(r"(?<=/)|(?=\+)", name):
        if len(lines[-1] + part) > room:
            lines.append(CONTINUED[1:])
        lines[-1] += part
    if len(lines) > MOST_LINES or any(len(line) > room for line in lines):
        return shortened(name, room)
    return "\n".join(line for line in lines if line)


def _spent(run: RunRecord, width: int) -> list[str]:
    """Return the largest loss of time, and a remedy to try.

    If its profile does not explain it, the largest loss that a profile explains follows. Simulated
    hardware comes last.
    """
    known = [rung for rung in rungs(run) if not rung.refused and rung.efficiency < KEEPS]
    known.sort(key=lambda r: (bool(run.stand_ins(r.arm.case)), r.efficiency))
    explained = [rung for rung in known if _shown_by_profile(rung)]
    shown = []
    if known and known[0] not in explained[:1]:
        shown += wrap(
            f" lost    {_name(known[0], width)}: {timeline.unexplained(known[0])}", width, 9
        )
    for worst in explained[:1]:
        shown += wrap(f" lost    {_lost(worst, _name(worst, width))}", width, 9)
        shown += _remedy(run, worst, width)
    return [*shown, ""] if shown else []


def _name(r: Rung, width: int) -> str:
    case = r.arm.case
    return shortened(f"{case.family}@{case.world.removesuffix('cpu')}", width - LEAST_NAME)


def _remedy(run: RunRecord, r: Rung, width: int) -> list[str]:
    """Return the first remedy against a loss, unless background load may be its cause."""
    case = r.arm.case
    if any(result.doubt for result in results(run) if result.case == case.id):
        return []
    remedies = advice(case, r.expected, r.losses, r.budget, run.settings, r.launch)
    if (first := next(iter(remedies), None)) is None:
        return []
    gain = "" if first.gain is None else f" (at most +{first.gain:.2f} of efficiency)"
    return wrap_command(f" try     against {first.term}{gain}: {first.remedy}", width, 9)


def _shown_by_profile(r: Rung) -> bool:
    """Return whether the profiled step is the step that was timed, and is longer than ideal."""
    return not r.apart and r.losses.step_ns > r.losses.ideal_ns


def _lost(r: Rung, name: str) -> str:
    """Return ``26.0 of 56.1 ms a step of CASE: compute 20.7, transfer 3.3``, the largest terms."""
    lost_ns = r.losses.step_ns - r.losses.ideal_ns
    terms = sorted(r.losses.excess_ns.items(), key=lambda item: -item[1])
    large = [(timeline.TERMS[term], ns) for term, ns in terms if ns > lost_ns / 10][:FEW]
    parts = ", ".join(f"{name} {float(ns) / 1e6:.1f}" for name, ns in large)
    lost_ms = float(lost_ns) / 1e6
    step_ms = float(r.losses.step_ns) / 1e6
    return f"{lost_ms:.1f} of {step_ms:.1f} ms a step of {name}: {parts}"


def _noticed(run: RunRecord, folder: Path, width: int) -> list[str]:
    """Return the first notices, and the number of the others."""
    every = [*earlier.sentences(run, folder), *notices.sentences(run, load=not why_open(run))]
    every += run.notes
    skipped = dict.fromkeys(
        result.detail for result in results(run) if result.status is Status.SKIP
    )
    cut = [plan.name for plan in run.plans if plan.hash in run.out_of_time]
    every += [f"skipped: {why}" for why in skipped]
    every += [
        f"required by {of_test.name} ({of_test.bound}), and not measured: {reason}"
        for of_test, met, reason in reached(run)
        if "::" in of_test.name and met is not Reach.MATCHED
    ]
    every += [f"cut by the time budget: {', '.join(cut)}"] if cut else []
    shown = [
        line for text in every[:FEW] for line in wrap(f" noticed {brief(run, text)}", width, 9)
    ]
    if len(every) > FEW:
        shown.append(f" noticed {len(every) - FEW} more things (--every)")
    return shown


def _next(run: RunRecord, folder: Path, rerun: str, width: int, page: str | None) -> Iterator[str]:
    """Yield the location of the results, and the next command to type."""
    if page is not None:
        yield f" page    {page}"
    name = short_name(folder)
    yield from wrap_command(f" all     scaleproof report {name} --every", width, 9)
    if not run.complete:
        yield from wrap_command(f" next    {run.continuation(name)}", width, 9)
        return
    remedies = decide(run)
    for line in remedies[:FEW]:
        yield from wrap_command(f" next    {line}", width, 9)
    same = any(result.status is Status.NOT_COMPARABLE for result in results(run))
    if not remedies and rerun and not same:  # the model has to be changed first
        broken = any(result.counts is Status.ERROR for result in results(run))
        yield from wrap_command(f" {'fixed? ' if broken else 'again  '} {rerun}", width, 9)
