"""Print all tables of a run: scaling, verdicts, coverage and cost."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from harness.analysis.judging import notices
from harness.analysis.reached import reached
from harness.analysis.results import Result, discoveries, ranked, results
from harness.base.formatting import duration
from harness.cases import CaseSpec, Form, Reach, Role, metrics
from harness.interface.report import (
    fabric,
    figures,
    script,
    sections,
    side_by_side,
    timeline,
    topology,
)
from harness.interface.report.headline import decide, headline
from harness.interface.report.scaling import scaling_table
from harness.interface.report.text import legend, rule, short_name, wrap, wrap_command
from harness.record import LaunchRecord, Purpose, Reason, RunRecord, Status
from harness.record.outcome import SEVERITY


def coverage(run: RunRecord, width: int = 100) -> list[str]:
    """Return the coverage of a run: what was measured, and everything that was not."""
    asked = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    if not asked:
        return []
    timed = {
        launch.case for launch in run.launches if launch.purpose is Purpose.TIMED and launch.usable
    }
    cases = [case for digest, case in asked.items() if digest in timed]
    profiled = {
        launch.case
        for launch in run.launches
        if launch.purpose is Purpose.PROFILE and launch.budget
    }
    controls = sum(arm.role is Role.CONTROL for plan in run.plans for arm in plan.arms)
    apart = f" (controls, which are only checked: {controls})" if controls else ""
    lines = [
        f" covered    timed {len(cases)} of {len(asked)} cases{apart}, profiled {len(profiled)}"
    ]
    lines += wrap(f" worlds     {_worlds(run, cases)}", width, 12)
    of_catalogue = not all(case.script for case in asked.values())
    for kind, text in _names(run, cases) if of_catalogue else ():
        lines += wrap(f" {kind:<10} {text}", width, 12)
    lines += wrap(f" losses     {notices.reproducible(run)}", width, 12)
    for reason in dict.fromkeys(
        result.detail for result in results(run) if result.status is Status.SKIP
    ):
        lines += wrap(f" skipped    {reason}", width, 12)
    cut = [plan.name for plan in run.plans if plan.hash in run.out_of_time]
    if cut:
        lines += wrap(f" cut        by the time budget: {', '.join(cut)}", width, 12)
    return [*lines, *unmet(run, width)]


def _worlds(run: RunRecord, cases: Collection[CaseSpec]) -> str:
    """Return world sizes, missing sizes, ranks and modes, separately for simulated devices."""
    parts = []
    real = {case.world_size for case in cases if not run.stand_ins(case)}
    stand_in = {case.world_size for case in cases if run.stand_ins(case)}
    for label, worlds in (("", real), ("simulated ", stand_in)):
        if worlds:
            skipped = [str(n) for n in range(1, max(worlds)) if n not in worlds]
            gap = f" (not {', '.join(skipped)})" if 0 < len(skipped) <= 8 else ""
            gap = gap or (f" (not {len(skipped)} sizes in between)" if skipped else "")
            ranks = f"ranks 0..{max(worlds) - 1}" if max(worlds) > 1 else "rank 0"
            parts.append(f"{label}{_list(map(str, sorted(worlds)))}{gap}, {ranks}")
    shapes = sorted({"x".join(map(str, case.nodes)) for case in cases if len(case.nodes) > 1})
    parts.append(f"ranks per node {_list(shapes)}" if shapes else "one node")
    parts.append(f"modes {_list(sorted({str(case.mode) for case in cases}))}")
    parts.append(f"precisions {_list(sorted({str(case.precision) for case in cases}))}")
    return "; ".join(parts)


def _names(run: RunRecord, cases: Collection[CaseSpec]) -> list[tuple[str, str]]:
    """Return which of the available strategies, models and compressors were used."""
    used = {
        "strategies": {case.strategy for case in cases},
        "models": {case.model for case in cases},
        "compressors": {case.compressor for case in cases if case.compressor},
    }
    rows = []
    for kind, offered in run.offered.items():
        names = used.get(kind, set())
        unnamed = [name for name in offered if name not in names]
        without = f" (not {', '.join(unnamed)})" if unnamed else ""
        word = {"strategies": "strategy", "models": "model", "compressors": "compressor"}[kind]
        named = f"{_list(sorted(names))}: " if names else ""  # A compressor is called "none", too.
        rows.append((word, f"{named}{len(names)} of {len(offered)}{without}"))
    return rows


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def unmet(run: RunRecord, width: int = 100) -> list[str]:
    """Return the thresholds that judged nothing.

    This machine cannot test some of them; others match no case of the run.
    """
    if not any(plan.arms for plan in run.plans):
        return []
    beyond: dict[str, list[str]] = {}
    unused = []
    for threshold, met, why in reached(run):
        if met is Reach.OUT_OF_REACH:
            beyond.setdefault(why, []).append(threshold.name)
        elif met is Reach.UNMATCHED:
            unused.append(threshold.name)
    lines: list[str] = []
    number = sum(map(len, beyond.values()))
    if unused:
        names = ", ".join(unused)
        match = "thresholds match" if len(unused) > 1 else "threshold matches"
        lines += wrap(f" unused     {len(unused)} {match} no case: {names}", width, 12)
    if beyond:
        why = "; ".join(f"{reason} ({len(names)})" for reason, names in beyond.items())
        lines += wrap(f" untested   {number} thresholds are not tested here: {why}", width, 12)
    return lines


_EFFICIENCY = (
    " efficiency = throughput per rank against plain (one device, no wrapper) unless marked"
    "; each end of an interval is a 95% confidence limit"
)
#: Explanations of columns of the scaling table. They are printed for shown columns only.
_EXPLAINED = {
    "worst": "worst pair of launches",
    "p95": "efficiency by 95th percentiles of steps",
    "MFU": "the model's FLOP/s over the device's peak",
    "MFU<": "upper bound of MFU by roofline",
}
#: Phases of a rank that every training has, so they are not overhead.
_TRAINING = ("model", "data")


def header(run: RunRecord) -> str:
    """Return one line about machine, torch and backends."""
    software = run.software
    backends = sorted({arm.case.backend for plan in run.plans for arm in plan.arms})
    parts = [
        run.machine.title,
        f"torch {software.get('torch', 'n/a')} {' '.join(backends)}".strip(),
        f"machine {run.machine.key}",
    ]
    return "scaling: " + " · ".join(parts)


def verdict_lines(run: RunRecord, width: int = 100) -> list[str]:
    """Return a sentence for every result, worst first."""
    return [line for result in ranked(run) for line in verdict_line(result, width)]


def verdict_line(result: Result, width: int) -> list[str]:
    """Return the lines ``FAIL  case  metric v baseline: value [interval], bound: why``."""
    form = metrics.metric(result.metric).form
    figure = figures.figure(result)
    figure = f" {figure}" if figure else ""
    bound = f" bound {result.bound}" if result.bound and form is not Form.GATE else ""
    name = f" ({result.rule})" if result.rule else ""
    reason = "" if result.reason is Reason.MET else f": {result.detail}"
    message = f" {result.status:<12}  {result.case}  {figures.metric(result)}{figure}"
    return wrap(f"{message}{bound}{name}{reason}", width, 15)


def counts(run: RunRecord) -> list[str]:
    """Return ``9 PASS  1 FAIL ...``, and how many remain after correction for multiple tests."""
    every = results(run)
    caught = sum(result.reason is Reason.CAUGHT for result in every)
    by_status = Counter(result.status for result in every if result.reason is not Reason.CAUGHT)
    parts = [f"{by_status[status]} {status}" for status in SEVERITY if by_status[status]]
    parts += [f"{caught} control{'s' if caught > 1 else ''} caught"] if caught else []
    waived = sum(result.waived for result in every)
    sentence = "  ".join(parts) or "nothing was judged"
    if waived:
        sentence += f"  ({waived} waived)"
    lines = [f" {sentence}"]
    if by_status[Status.PASS] or by_status[Status.FAIL]:
        passes, fails = discoveries(run)
        lines += [
            " error rate of each single verdict: at most 5%",
            f" after correction for all thresholds (false discovery rate 5%): {passes} of"
            f" {by_status[Status.PASS]} PASS, {fails} of {by_status[Status.FAIL]} FAIL remain",
        ]
        if len(run.settings.nodes) > 1:
            where = {launch.hosts for launch in run.launches if launch.purpose is Purpose.TIMED}
            drawn = any(where) and len(where) > 1
            lines.append(
                " every launch ran on nodes drawn from all of them"
                if drawn
                else " valid for these nodes only, because every launch used them in the same order"
            )
    return lines


def cost(run: RunRecord, width: int = 100) -> list[str]:
    """Return the number of launches, their duration, and the overhead of the run."""
    timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
    if not timed:
        return [] if run.fabric or run.recoveries else [" cost       nothing was timed"]
    pilots = [x for x in run.launches if x.purpose is Purpose.PILOT]
    profiles = [x for x in run.launches if x.purpose is Purpose.PROFILE]
    gates = [x for x in run.launches if x.purpose is Purpose.GATE]
    wall = sum(x.wall_s for x in timed)
    slots = [x.slot for x in run.launches if x.slot]
    launch = (wall - _stepping_s(timed)) / len(timed)
    message = (
        f" cost       {len(timed)} timed launches of {wall / len(timed):.2f} s ({launch:.2f} s each"
        f" to start and end), {len(pilots)} for calibration, {len(gates)} correctness checks,"
        f" {len(profiles)} profiles;"
        f" {overhead(run):.0%} of {duration(run.elapsed_s)} is overhead"
    )
    if slots:
        at_once = len(slots) / len(set(slots))
        probes = sum(x.purpose is Purpose.PROBE for x in run.launches)
        message += f"; {len(slots)} launches ran concurrently, {at_once:.1f} at a time"
        message += f", after {probes} probes of how launches slow each other" if probes else ""
    lines = wrap(message, width, 12)
    if run.device_s:
        used = sum(x.wall_s * len(x.ranks) for x in run.launches)
        decided = sum(r.status in (Status.PASS, Status.FAIL) for r in results(run))
        share = used / run.device_s
        message = f" devices    {_hours(run.device_s)} held, {share:.0%} of that in launches"
        message += f"; {_hours(run.device_s / decided)} per decided verdict" if decided else ""
        lines += wrap(message, width, 12)
    return lines


def overhead(run: RunRecord) -> float:
    """Return the share of a run's time in which nothing was built, trained or checked."""
    busy = {launch.slot or launch.launch: 0.0 for launch in run.launches}
    for launch in run.launches:  # Launches with the same ``slot`` ran concurrently.
        slot = launch.slot or launch.launch
        checks = launch.purpose in (Purpose.GATE, Purpose.REFERENCE)
        making_s = max(
            (sum(rank.phases_s.get(name, 0.0) for name in _TRAINING) for rank in launch.ranks),
            default=0.0,
        )
        busy[slot] = max(busy[slot], launch.wall_s if checks else making_s + _stepping_s([launch]))
    return 1 - sum(busy.values()) / run.elapsed_s if run.elapsed_s else 0.0


def _hours(device_s: float) -> str:
    """Return device-hours, or device-seconds below 0.1 device-hours."""
    return (
        f"{device_s / 3600:.2g} device-hours"
        if device_s >= 360
        else f"{device_s:.0f} device-seconds"
    )


def _stepping_s(launches: Sequence[LaunchRecord]) -> float:
    return sum(max((rank.stepping_s for rank in launch.ranks), default=0.0) for launch in launches)


def summary(
    run: RunRecord, folder: Path, rerun: str, width: int = 100, *, page: str | None = None
) -> list[str]:
    """Return every table of a run, and a line for every verdict."""
    lines = [rule("scaling", width, "="), *wrap(f" {header(run)}", width, 10)]
    if table_ := scaling_table(run, width):
        note = "; ".join(filter(None, [_EFFICIENCY, legend(_EXPLAINED, table_[0])]))
        lines += ["", *table_, *wrap(note, width, 14)]
        if any(line.endswith(" ~") for line in table_):
            doubts = dict.fromkeys(result.doubt for result in results(run) if result.doubt)
            lines += wrap(f" ~ treat as unreliable: {next(iter(doubts))}", width, 3)
    lines += [
        "",
        *side_by_side.lines(run, width),
        *script.lines(run, width),
        *fabric.lines(run, width),
        *topology.lines(run, width),
        *sections.lines(run, width),
    ]
    lines += timeline.lines(run, width)
    lines += [rule("verdicts", width), *verdict_lines(run, width)]
    lines += [line for remark in sections.remarks(run) for line in wrap(f" {remark}", width, 12)]
    lines += [*(part for line in counts(run) for part in wrap(line, width, 3)), ""]
    for finding in [*notices.sentences(run), *run.notes]:
        lines += wrap(f" noticed    {finding}", width, 12)
    lines += [*coverage(run, width), *cost(run, width)]
    lines += wrap_command(f" rerun      {rerun}", width, 12)
    lines += (
        [f" report     scaleproof report {folder}"] if page is None else [f" page       {page}"]
    )
    if not run.complete:
        incomplete = f" resume     this run is incomplete: {run.continuation(short_name(folder))}"
        lines += wrap_command(incomplete, width, 12)
    for line in decide(run):
        lines += wrap_command(f" decide     {line}", width, 12)
    return [*lines, "", *wrap(f" {headline(run)}", width, 1)]
