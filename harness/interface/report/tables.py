"""The end of a run: the scaling table, the verdicts, what was covered, where the record lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.analysis.judging import notices, verdicts
from harness.analysis.judging.points import shown_against, tabled
from harness.analysis.ladder import LadderRow, in_table, ladder_rows
from harness.base.numbers import duration, rate, si
from harness.interface.report import fabric, recovery, timeline
from harness.interface.report.coverage import coverage
from harness.interface.report.text import Column, rule, table, wrap
from harness.record import LaunchRecord, Purpose, Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY
from harness.spec import Form, metrics

_COLUMNS = (
    Column(header="case", keep=100, left=True),
    Column(header="ranks", keep=99),
    Column(header="samples/s", keep=58),
    Column(header="tok/s", keep=6),
    Column(header="per rank", keep=20),
    Column(header="ms/step", keep=30),
    Column(header="speedup", keep=60),
    Column(header="efficiency [95%]", keep=90, left=True),
    Column(header="p95", keep=62),
    Column(header="worst", keep=72),
    Column(header="v wrapped", keep=15),
    Column(header="n", keep=10),
    Column(header="detects", keep=8),
    Column(header="serial", keep=4),
    Column(header="MB sent", keep=9),
    Column(header="of form", keep=7),
    Column(header="peak MB", keep=3),
    Column(header="TFLOP/s", keep=2),
    Column(header="MFU", keep=1),
    Column(header="bound", keep=80),
    Column(header="verdict", keep=98, left=True),
)


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
    found = run.verdicts
    real: list[list[str]] = []
    stand_in: list[list[str]] = []
    ranked = sorted(
        run.plans,
        key=lambda p: min((SEVERITY.index(v.status) for v in found if v.plan == p.hash), default=9),
    )
    for plan in ranked:
        rows = [_row(one) for one in ladder_rows(run, plan)]
        if not rows:
            continue
        case = plan.arms[-1].case
        names = [case.family, *(f"  +{extra}" for extra in case.extras.split("+")[1:])]
        if (against := shown_against(plan)) != "plain":
            names.append(f"  v {against}")
        rows += [[""] * len(_COLUMNS) for _ in range(len(names) - len(rows))]
        for name, row in zip([*names, *[""] * len(rows)], rows, strict=False):
            row[0] = name
        first = plan.arms[0].case if plan.arms else None
        (stand_in if first is not None and first.stand_in else real).extend(rows)
    if not real and not stand_in:
        return []
    lines = table(_COLUMNS, [*real, *stand_in], width)
    out = lines[: 1 + len(real)] if real else lines[:1]
    if stand_in:
        kinds = sorted({s for p in run.plans for a in p.arms for s in a.case.stand_in})
        out.append(f" -- stand-ins ({', '.join(kinds)}): never compared with hardware --")
        out += lines[1 + len(real) :]
    return out


def _row(one: LadderRow) -> list[str]:
    row, point, judged = one.row, one.point, one.verdict
    several = row.case.world_size > 1
    bound = judged.bound if judged else ""
    return [
        "",
        row.case.world,
        rate(point.throughput),
        "" if row.tokens_per_s is None else rate(row.tokens_per_s),
        rate(point.throughput / row.case.world_size),
        "n/a" if row.step_s is None else f"{row.step_s * 1e3:.1f}",
        f"{point.speedup:.2f}x",
        interval(point.efficiency, point.efficiency_low, point.efficiency_high),
        "n/a" if point.p95 is None else f"{point.p95:.3f}",
        f"{point.worst:.3f}",
        "" if one.wrapped is None else f"{one.wrapped:.3f}",
        str(point.n),
        "" if judged is None or judged.mde is None else f"{judged.mde * 100:.1f}%",
        "" if point.karp_flatt is None else f"{point.karp_flatt:.3f}",
        f"{row.sent_bytes / 1e6:.2f}" if row.sent_bytes is not None else "n/a" if several else "",
        "" if row.sent_of_form is None else f"{row.sent_of_form:.3f}",
        "n/a" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
        "" if row.flops is None else f"{row.flops / 1e12:.3g}",
        "n/a" if row.mfu is None else f"{row.mfu:.2f}",
        f"{bound} *" if bound and not one.shown else bound,
        str(judged.status) if judged else "",
    ]


def verdict_lines(run: RunRecord, width: int = 100, *, every: bool = False) -> list[str]:
    """What needs a sentence: all but PASS, RECORDED and SKIP; controls; what is in no table."""
    out = []
    for v in sorted(run.verdicts, key=lambda v: SEVERITY.index(v.status)):
        quiet = v.status in (Status.PASS, Status.RECORDED, Status.SKIP)
        quiet = quiet and v.reason is not Reason.CAUGHT
        plan = next((p for p in run.plans if p.hash == v.plan), None)
        shown = plan is not None and in_table(v, shown_against(plan))
        laddered = plan is None or bool(tabled(plan))
        said = v.status is Status.PASS or (v.status is Status.RECORDED and not laddered)
        if quiet and not every and (shown or not said):
            continue
        out += verdict_line(v, width)
    return out


def verdict_line(v: Verdict, width: int) -> list[str]:
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
    text = f" {v.status:<12}  {v.case}  {v.metric}{versus}{figures}{bound}{name}{why}"
    return wrap(text, width, 15)


def counts(run: RunRecord) -> list[str]:
    """``9 PASS  1 FAIL ...``, and how many of them hold together."""
    found = Counter(v.status for v in run.verdicts)
    parts = [f"{found[s]} {s}" for s in SEVERITY if found[s]]
    waived = sum(v.waived for v in run.verdicts)
    out = "  ".join(parts) or "nothing was judged"
    if waived:
        out += f"  ({waived} waived)"
    lines = [f" {out}"]
    if found[Status.PASS] or found[Status.FAIL]:
        passes, fails = verdicts.together(run.verdicts)
        lines.append(
            f" each alone errs at most once in 20; together, at most 5% false:"
            f" {passes} PASS, {fails} FAIL"
        )
    return lines


def cost(run: RunRecord, width: int = 100) -> list[str]:
    """Launches, seconds per launch, and the share of the run spent outside steps."""
    timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
    if not timed:
        return [" cost     nothing was timed"]
    pilots = [x for x in run.launches if x.purpose is Purpose.PILOT]
    profiles = [x for x in run.launches if x.purpose is Purpose.PROFILE]
    gates = [x for x in run.launches if x.purpose is Purpose.GATE]
    wall = sum(x.wall_s for x in timed)
    launch = (wall - _stepping_s(timed)) / len(timed)
    training = _stepping_s([*timed, *pilots, *profiles]) + sum(x.wall_s for x in gates)
    text = (
        f" cost     {len(timed)} timed launches of {wall / len(timed):.2f} s ({launch:.2f} s each"
        f" to start and end), {len(pilots)} pilots, {len(gates)} gates,"
        f" {len(profiles)} profiles;"
        f" {1 - training / run.elapsed_s:.0%} of {duration(run.elapsed_s)} is the harness"
    )
    return wrap(text, width, 10)


def _stepping_s(launches: Sequence[LaunchRecord]) -> float:
    return sum(max((r.stepping_s for r in x.ranks), default=0.0) for x in launches)


def summary(run: RunRecord, folder: Path, rerun: str, width: int = 100) -> list[str]:
    """Everything printed at the end of a run."""
    out = [rule("scaling", width, "="), " " + header(run)]
    if table_ := scaling_table(run, width):
        note = (
            " efficiency = throughput per rank against plain (one device, no wrapper), or as marked"
            "; each end holds 19 times in 20; worst = worst pair of launches"
        )
        if "  p95" in table_[0]:
            note += "; p95 = on 95th percentiles of steps"
        out += ["", *table_, *wrap(note, width, 14)]
        if any(" *  " in line for line in table_):
            out.append(" * judged on another figure than the one shown: it stands below")
    out += ["", *fabric.lines(run, width), *recovery.lines(run, width), *timeline.lines(run, width)]
    out += [rule("verdicts", width), *verdict_lines(run, width)]
    out += [*counts(run), ""]
    for finding in [*notices.findings(run), *run.notes]:
        out += wrap(f" noticed  {finding}", width, 10)
    out += [*coverage(run, width), *cost(run, width)]
    out += [f" rerun    {rerun}"]
    out += [f" report   scaleproof report {folder}"]
    if not run.complete:
        out += [f" resume   this run is incomplete: scaleproof run --resume {folder}"]
    return out
