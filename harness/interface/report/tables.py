"""The end of a run: the scaling table, the verdicts, what was covered, where the record lies."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeAlias

from harness.analysis.judging import notices, verdicts
from harness.analysis.judging.points import shown_against, tabled
from harness.analysis.ladder import LadderRow, in_table, ladder_rows
from harness.base.numbers import duration, rate, si
from harness.interface.report import fabric, recovery, script, text, timeline
from harness.interface.report.coverage import coverage
from harness.interface.report.headline import decide, headline
from harness.interface.report.text import Column, rule, table, wrap
from harness.record import LaunchRecord, Purpose, Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY
from harness.spec import Form, StandIn, metrics

#: A line of the scaling table: a name, and a rung unless the name has more lines than rungs.
Named: TypeAlias = tuple[str, LadderRow | None]
#: The lines of a ladder's name, and its rungs.
Ladder: TypeAlias = tuple[list[str], list[LadderRow]]


def header(run: RunRecord) -> str:
    """One line: what was measured on."""
    software = run.software
    backends = sorted({a.case.backend for p in run.plans for a in p.arms})
    parts = [
        run.machine.title,
        f"torch {software.get('torch', 'n/a')} {' '.join(backends)}".strip(),
        f"machine {run.machine.key}",
    ]
    return "scaling: " + " · ".join(parts)


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """``0.954 [0.946, 0.961]``"""
    if value is None:
        return "n/a"
    if low is None or high is None:
        return f"{value:.3f} [n/a]"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def scaling_table(run: RunRecord, width: int = 100) -> list[str]:
    """Every rung against plain, worst ladder first; stand-ins apart."""
    ladders: dict[bool, list[Ladder]] = {False: [], True: []}  # by whether it is a stand-in
    worst = {p.hash: min((SEVERITY.index(v.status) for v in run.verdicts if v.plan == p.hash),
             default=9) for p in run.plans}  # fmt: skip
    for plan in sorted(run.plans, key=lambda p: worst[p.hash]):
        rungs = ladder_rows(run, plan)
        if not rungs:
            continue
        names = text.named(plan.arms[-1].case).split("\n")
        if (against := shown_against(plan)) != "plain":
            names.append(f"  v {against}")
        ladders[bool(plan.arms[0].case.stand_in)].append((names, rungs))
    every = [*ladders[False], *ladders[True]]
    if not every:
        return []
    measured = any(r.row.energy_j is not None for _, rungs in every for r in rungs)
    columns = [c for c in _COLUMNS if measured or c.header != "J/sample"]
    header, lines = _laid_out(columns, every, width)
    num_real = len(ladders[False])
    out = [header, *(line for of_one in lines[:num_real] for line in of_one)]
    if ladders[True]:
        kinds = sorted({s for p in run.plans for a in p.arms for s in a.case.stand_in})
        out.append(f" -- stand-ins ({', '.join(kinds)}): never compared with hardware --")
        out += [line for of_one in lines[num_real:] for line in of_one]
    if crowded := sorted(
        {
            a.case.world
            for p in run.plans
            for a in p.arms
            if StandIn.OVERSUBSCRIBED in run.stand_ins(a.case)
        }
    ):
        out.append(
            f" -- oversubscribed ({', '.join(crowded)}): more ranks than cores, a stand-in that is"
            " never compared with hardware --"
        )
    return out


def _laid_out(
    columns: Sequence[Column[Named]], ladders: Sequence[Ladder], width: int
) -> tuple[str, list[list[str]]]:
    """The header, and the lines of each ladder.

    A verdict is never shown without its bound: where that has no room beside the names, these have
    lines of their own.
    """
    beside = [list(zip_longest(names, rungs, fillvalue=None)) for names, rungs in ladders]
    flat = [(name or "", rung) for ladder in beside for name, rung in ladder]
    header, *lines = table(columns, flat, width)
    bounded = any(r.verdict and r.verdict.bound for _, rungs in ladders for r in rungs)
    if not bounded or "bound" in header.split():
        rest = iter(lines)
        return header, [list(islice(rest, len(ladder))) for ladder in beside]
    rungs_alone = [("", rung) for _, rungs in ladders for rung in rungs]
    header, *lines = table(columns[1:], rungs_alone, width - 2)
    rest = (f"  {line}" for line in lines)
    return f"  {header}", [
        [*wrap(" ".join([" " + names[0], *(n.strip() for n in names[1:])]), width, 3),
         *islice(rest, len(rungs))]
        for names, rungs in ladders
    ]  # fmt: skip


def _column(
    header: str, keep: int, cell: Callable[[LadderRow], str], left: bool = False
) -> Column[Named]:
    return Column(header, keep, lambda line: "" if line[1] is None else cell(line[1]), left)


def _told(value: float | None, form: str, scale: float = 1.0, none: str = "") -> str:
    return none if value is None else format(value * scale, form)


def _sent(one: LadderRow) -> str:
    several = one.row.case.world_size > 1
    return _told(one.row.sent_bytes, ".2f", 1e-6, "n/a" if several else "")


def _efficiency(one: LadderRow) -> str:
    p = one.point
    return interval(p.efficiency, p.efficiency_low, p.efficiency_high)


def _bound(one: LadderRow) -> str:
    bound = one.verdict.bound if one.verdict else ""
    return f"{bound} *" if bound and not one.shown else bound


def _status(verdict: Verdict | None) -> str:
    """The word; a figure that no rule judges is marked where nobody should rely on it."""
    if verdict is None:
        return ""
    doubtful = verdict.status is Status.RECORDED and verdict.doubt
    return f"{verdict.status} ~" if doubtful else str(verdict.status)


#: Phases of a rank that any training has.
_TRAINING = ("model", "data")
_COLUMNS = (
    Column[Named]("case", 100, lambda line: line[0], left=True),
    _column("ranks", 99, lambda r: r.row.case.world),
    _column("samples/s", 58, lambda r: rate(r.point.throughput)),
    _column("tok/s", 6, lambda r: "" if r.row.tokens_per_s is None else rate(r.row.tokens_per_s)),
    _column("per rank", 20, lambda r: rate(r.point.throughput / r.row.case.world_size)),
    _column("ms/step", 30, lambda r: _told(r.row.step_s, ".1f", 1e3, "n/a")),
    _column("speedup", 60, lambda r: f"{r.point.speedup:.2f}x"),
    _column("efficiency [95%]", 90, _efficiency, left=True),
    _column("p95", 62, lambda r: _told(r.point.p95, ".3f", none="n/a")),
    _column("worst", 72, lambda r: f"{r.point.worst:.3f}"),
    _column("v wrapped", 15, lambda r: _told(r.wrapped, ".3f")),
    _column("n", 10, lambda r: str(r.point.n)),
    _column("detects", 8, lambda r: _told(r.verdict.mde if r.verdict else None, ".1%")),
    _column("serial", 4, lambda r: _told(r.point.karp_flatt, ".3f")),
    _column("MB sent", 9, _sent),
    _column("of form", 7, lambda r: _told(r.row.sent_of_form, ".3f")),
    _column("peak MB", 3, lambda r: _told(r.row.peak_bytes, ".0f", 1e-6, "n/a")),
    _column("kB/step", 0, lambda r: _told(r.row.growth, "+.1f", 1e-3)),
    _column("TFLOP/s", 2, lambda r: _told(r.row.flops, ".3g", 1e-12)),
    _column("MFU", 1, lambda r: _told(r.row.mfu, ".2f", none="n/a")),
    _column("J/sample", 5, lambda r: _told(r.row.energy_j, ".3g", none="n/a")),
    _column("bound", 80, _bound),
    _column("verdict", 98, lambda r: _status(r.verdict), left=True),
)


def verdict_lines(run: RunRecord, width: int = 100, *, every: bool = False) -> list[str]:
    """What needs a sentence: all but PASS, RECORDED and SKIP; controls; what is in no table.

    Figures that one and the same thing kept from being measured share a sentence.
    """
    out = []
    alike = Counter(_hindered(v) for v in run.verdicts)
    for v in sorted(run.verdicts, key=lambda v: SEVERITY.index(v.status)):
        quiet = v.status in (Status.PASS, Status.RECORDED, Status.SKIP)
        quiet = quiet and v.reason is not Reason.CAUGHT
        plan = next((p for p in run.plans if p.hash == v.plan), None)
        shown = plan is not None and in_table(v, shown_against(plan))
        laddered = plan is None or bool(tabled(plan))
        said = v.status is Status.PASS or (v.status is Status.RECORDED and not laddered)
        if quiet and not every and (shown or not said):
            continue
        if not every and v.value is None:
            more = alike.pop(_hindered(v), 0) - 1
            out += [] if more < 0 else verdict_line(v, width, more)
            continue
        out += verdict_line(v, width)
    return out


def _hindered(v: Verdict) -> tuple[Status, str]:
    """A verdict's status and reason, without the case in which it was met."""
    return v.status, v.detail.partition(": ")[2] or v.detail


def verdict_line(v: Verdict, width: int, more: int = 0) -> list[str]:
    """``FAIL  case  metric against baseline: value [interval], bound: why``"""
    metric = metrics.metric(v.metric)
    figures = ""
    if v.value is not None and metric.form is Form.ABSOLUTE:
        figures = (
            f" {si(v.value, metric.unit)} [{si(v.low, metric.unit)}, {si(v.high, metric.unit)}]"
        )
    elif v.value is not None:
        figures = f" {interval(v.value, v.low, v.high)}"
    bound = f" bound {v.bound}" if v.bound and metric.form is not Form.GATE else ""
    name = f" ({v.rule})" if v.rule else ""
    why = "" if v.reason is Reason.MET else f": {v.detail}"
    versus = "" if metric.form in (Form.ABSOLUTE, Form.GATE) else f" v {v.against}"
    why += f" (and {more} more figures)" if more > 0 else ""
    told = f" {v.status:<12}  {v.case}  {v.metric}{versus}{figures}{bound}{name}{why}"
    return wrap(told, width, 15)


def counts(run: RunRecord) -> list[str]:
    """``9 PASS  1 FAIL ...``, and how many of them hold together."""
    caught = sum(v.reason is Reason.CAUGHT for v in run.verdicts)
    found = Counter(v.status for v in run.verdicts if v.reason is not Reason.CAUGHT)
    parts = [f"{found[s]} {s}" for s in SEVERITY if found[s]]
    parts += [f"{caught} control{'s' if caught > 1 else ''} caught"] if caught else []
    waived = sum(v.waived for v in run.verdicts)
    out = "  ".join(parts) or "nothing was judged"
    if waived:
        out += f"  ({waived} waived)"
    lines = [f" {out}"]
    if found[Status.PASS] or found[Status.FAIL]:
        passes, fails = verdicts.together(run.verdicts)
        lines += [
            " each verdict alone errs at most once in 20",
            f" these hold together, with at most 5% of them false: {passes} of {found[Status.PASS]}"
            f" PASS, {fails} of {found[Status.FAIL]} FAIL",
        ]
        if len(run.settings.nodes) > 1:
            where = {x.hosts for x in run.launches if x.purpose is Purpose.TIMED}
            drawn = any(where) and len(where) > 1
            lines.append(
                " every launch ran on nodes drawn from all of them"
                if drawn
                else " they hold for these nodes: every launch filled them in the same order"
            )
    return lines


def cost(run: RunRecord, width: int = 100) -> list[str]:
    """Launches, seconds per launch, and the overhead of the run."""
    timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
    if not timed:
        return [] if run.fabric or run.recoveries else [" cost       nothing was timed"]
    pilots = [x for x in run.launches if x.purpose is Purpose.PILOT]
    profiles = [x for x in run.launches if x.purpose is Purpose.PROFILE]
    gates = [x for x in run.launches if x.purpose is Purpose.GATE]
    wall = sum(x.wall_s for x in timed)
    slots = [x.slot for x in run.launches if x.slot]
    launch = (wall - _stepping_s(timed)) / len(timed)
    told = (
        f" cost       {len(timed)} timed launches of {wall / len(timed):.2f} s ({launch:.2f} s each"
        f" to start and end), {len(pilots)} pilots, {len(gates)} gates,"
        f" {len(profiles)} profiles;"
        f" {overhead(run):.0%} of {duration(run.elapsed_s)} is overhead"
    )
    if slots:
        each = len(slots) / len(set(slots))
        probes = sum(x.purpose is Purpose.PROBE for x in run.launches)
        told += f"; {len(slots)} launches ran side by side, {each:.1f} at a time"
        told += f", after {probes} probes of what neighbours take" if probes else ""
    out = wrap(told, width, 12)
    if run.device_s:
        used = sum(x.wall_s * len(x.ranks) for x in run.launches)
        decided = sum(v.status in (Status.PASS, Status.FAIL) for v in run.verdicts)
        share = used / run.device_s
        told = f" devices    {_hours(run.device_s)} held, {share:.0%} of that in launches"
        told += f"; {_hours(run.device_s / decided)} a decided verdict" if decided else ""
        out += wrap(told, width, 12)
    return out


def overhead(run: RunRecord) -> float:
    """The share of a run's time in which nothing is built, trained or checked."""
    busy = {x.slot or x.launch: 0.0 for x in run.launches}
    for x in run.launches:  # those of a slot ran at once
        at = x.slot or x.launch
        checks = x.purpose in (Purpose.GATE, Purpose.REFERENCE)
        making_s = max(
            (sum(r.phases_s.get(name, 0.0) for name in _TRAINING) for r in x.ranks), default=0.0
        )
        busy[at] = max(busy[at], x.wall_s if checks else making_s + _stepping_s([x]))
    return 1 - sum(busy.values()) / run.elapsed_s if run.elapsed_s else 0.0


def _hours(device_s: float) -> str:
    """Device-hours, or device-seconds while they are few."""
    return (
        f"{device_s / 3600:.2g} device-hours"
        if device_s >= 360
        else f"{device_s:.0f} device-seconds"
    )


def _stepping_s(launches: Sequence[LaunchRecord]) -> float:
    return sum(max((r.stepping_s for r in x.ranks), default=0.0) for x in launches)


def summary(
    run: RunRecord,
    folder: Path,
    rerun: str,
    width: int = 100,
    *,
    every: bool = False,
    page: Path | None = None,
) -> list[str]:
    """Everything printed at the end of a run; with ``every`` nothing of its coverage is folded."""
    out = [rule("scaling", width, "="), *wrap(f" {header(run)}", width, 10)]
    if table_ := scaling_table(run, width):
        note = (
            " efficiency = throughput per rank against plain (one device, no wrapper) unless marked"
            "; each end of an interval holds 19 times in 20"
        )
        if "  worst" in table_[0]:
            note += "; worst = worst pair of launches"
        if "  p95" in table_[0]:
            note += "; p95 = efficiency by 95th percentiles of steps"
        out += ["", *table_, *wrap(note, width, 14)]
        if any(line.endswith(" ~") for line in table_):
            doubts = dict.fromkeys(v.doubt for v in run.verdicts if v.doubt)
            out += wrap(f" ~ recorded in doubt: {next(iter(doubts))}", width, 3)
        if any(" *  " in line for line in table_):
            out.append(" * the verdict is on another figure, shown below")
    out += ["", *script.lines(run, width), *fabric.lines(run, width), *recovery.lines(run, width)]
    out += timeline.lines(run, width, every=every)
    out += [rule("verdicts", width), *verdict_lines(run, width)]
    out += [*counts(run), ""]
    for finding in [*notices.findings(run), *run.notes]:
        out += wrap(f" noticed    {finding}", width, 12)
    out += [*coverage(run, width, every=every), *cost(run, width)]
    out += [f" rerun      {rerun}"]
    out += [f" report     scaleproof report {folder}"] if page is None else [f" page       {page}"]
    if not run.complete:
        out += [f" resume     this run is incomplete: scaleproof run --resume {folder}"]
    for line in decide(run):
        out += wrap(f" decide     {line}", width, 12)
    return [*out, "", *wrap(f" {headline(run)}", width, 1)]
