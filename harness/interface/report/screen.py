"""One screen: what a run came to, why, the evidence, and what to do next.

    the sentence to quote, the cause of what is open
    a line for each requirement (of what has none: for each rung), stand-ins apart
    where the time went for what lost most
    the page, and the next command

Everything else is on the page and in ``report --every`` (``tables``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.analysis.judging import notices
from harness.analysis.judging.points import piloted
from harness.analysis.judging.tally import of_stand_in, requirements, wrong
from harness.analysis.ladder import LadderRow, in_table, ladder_rows
from harness.analysis.reached import reached
from harness.analysis.rungs import Rung, rungs
from harness.analysis.timeline.advice import advice
from harness.base.formatting import duration, si
from harness.cases import Form, Reach, metrics
from harness.interface.report import fabric, script, sections, side_by_side, timeline, topology
from harness.interface.report.headline import brief, decide, headline, why_open
from harness.interface.report.scaling import judged_interval
from harness.interface.report.text import Column, rule, shortened, table, wrap
from harness.record import Reason, RunRecord, Status, Verdict
from harness.record.outcome import SEVERITY

#: So many lines of verdicts stand on one screen, the worst ones; the others are counted.
MOST_ROWS = 16
#: So many rungs are told where their time went, and so many things that were noticed.
FEW = 3
#: A rung that keeps more of a rank's speed lost nothing worth a line.
KEEPS = 0.97
#: Where there is room for the speedup, too.
WIDE = 100
#: A name is shortened, but never to less.
LEAST_NAME = 24


_PLAIN = "efficiency [95% limits] = throughput per rank v plain training on one device"


@dataclass(frozen=True, kw_only=True)
class ScreenRow:
    """One requirement, or one rung that nothing was asked of."""

    name: str
    speedup: str
    value: str
    bound: str
    status: str
    mark: str = ""
    mfu: str = ""
    attains: str = ""


def lines(
    run: RunRecord, folder: Path, rerun: str, width: int = 80, *, page: Path | None = None
) -> list[str]:
    """The lines at the end of a run."""
    first = headline(run)
    causes = [cause for cause in why_open(run) if not first.endswith(cause)]
    shown = [rule("scaling", width, "="), *wrap(f" {first}", width, 1)]
    shown += [line for cause in causes for line in wrap(f" why   {cause}", width, 7)]
    shown += [*wrap(f" on    {measured_on(run)}", width, 7), ""]
    shown += _rows(run, width)
    shown += side_by_side.lines(run, width)
    shown += [*script.lines(run, width), *fabric.brief(run, width)]
    shown += topology.lines(run, width) if run.fabric and not run.plans else []
    shown += [*sections.lines(run, width), *_spent(run, width), *_noticed(run, width)]
    shown += [line for remark in sections.remarks(run) for line in wrap(f" {remark}", width, 3)]
    return [*shown, *_next(run, folder, rerun, width, page)]


def measured_on(run: RunRecord) -> str:
    """``2 cores of AMD EPYC · torch 2.13.0+cpu gloo · 152 launches in 4:11``"""
    backends = sorted({arm.case.backend for plan in run.plans for arm in plan.arms})
    many = len(run.launches)
    parts = [
        run.machine.title,
        f"torch {run.software.get('torch', 'n/a')} {' '.join(backends)}".strip(),
        f"{many} launch{'es' if many != 1 else ''} in {duration(run.elapsed_s)}",
    ]
    return " · ".join(parts)


def _rows(run: RunRecord, width: int) -> list[str]:
    """Requirements, the worst first; then rungs of ladders that have none; stand-ins apart."""
    marks = _Marks()
    shown, hidden = _fitting(_apart(run, marks))
    if not any(shown.values()):
        return []
    header, *laid_out = _laid_out([*shown[False], *shown[True]], marks.header, width)
    num_real = len(shown[False])
    out = [header, *laid_out[:num_real]]
    if shown[True]:
        kinds = sorted(
            {
                stand_in
                for plan in run.plans
                for arm in plan.arms
                for stand_in in run.stand_ins(arm.case)
            }
        )
        out.append(f" stand-ins ({', '.join(kinds)}): they say nothing of hardware")
    out += laid_out[num_real:]
    if hidden:
        words = ", ".join(f"{count} {status}" for status, count in hidden.items())
        out.append(f" and {words} (--every)")
    if any(row.status.endswith(" ~") for rows in shown.values() for row in rows):
        doubts = dict.fromkeys(verdict.doubt for verdict in run.verdicts if verdict.doubt)
        out += wrap(f" ~ treat as unreliable: {next(iter(doubts))}", width, 3)
    return [*out, *marks.lines(width), ""]


class _Marks:
    """Letters for figures that are no efficiency against plain."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}
        self.plain = False

    def of(self, metric: str, against: str) -> str:
        if metric == "efficiency" and against == "plain":
            self.plain = True
            return ""
        absolute = metrics.metric(metric).form is Form.ABSOLUTE
        what = metric if absolute else f"{metric} v {against}"
        return self._letters.setdefault(what, chr(ord("a") + len(self._letters)))

    @property
    def header(self) -> str:
        return "efficiency [95%]" if self.plain else "figure [95%]"

    def lines(self, width: int) -> list[str]:
        """Names the figures: nothing where there are none."""
        notes = [_PLAIN if self.plain else "figures have their 95% limits"]
        notes += [f"{letter}: {what}" for what, letter in self._letters.items()]
        used = self.plain or self._letters
        return wrap(f" {'; '.join(notes)}", width, 1) if used else []


def _apart(run: RunRecord, marks: _Marks) -> Mapping[bool, Sequence[ScreenRow]]:
    """All rows: those of hardware (False), and those of stand-ins."""
    caught = [verdict for verdict in run.verdicts if verdict.reason is Reason.CAUGHT]
    simulated = [v for v in run.verdicts if v.simulated and v.rule and v not in caught]
    asked = [*wrong(run), *requirements(run), *simulated]
    rungs_of = {
        (plan.hash, rung.row.case.hash): rung
        for plan in run.plans
        for rung in ladder_rows(run, plan)
    }
    names = _names(run, [v.case_hash for v in (*asked, *caught)], list(rungs_of))
    apart: dict[bool, list[ScreenRow]] = {False: [], True: []}
    attained = {
        (v.plan, v.case_hash): f"{v.value:.2f}"
        for v in run.verdicts
        if metrics.metric(v.metric).of_fabric and v.value is not None
    }
    for v in (*asked, *caught):
        row = _row(v, rungs_of.get((v.plan, v.case_hash)), names, marks)
        row = replace(row, attains=attained.get((v.plan, v.case_hash), ""))
        if v.value is None and v.status is Status.INCONCLUSIVE and (hint := _by_pilots(run, v)):
            row = replace(row, value=hint)  # of a wrong training there is no figure
        apart[of_stand_in(run, v)].append(row)
    judged = {requirement.plan for requirement in requirements(run)}
    ruled = {(v.plan, v.case_hash) for v in asked}
    for (plan, case), rung in rungs_of.items():
        if plan not in judged and (plan, case) not in ruled:
            apart[bool(run.stand_ins(rung.row.case))].append(_recorded(rung, names[case], marks))
    return apart


def _names(
    run: RunRecord, cases: Sequence[str], rungs_of: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Each case as short as it is unlike the others: family and ranks, else its whole name."""
    known = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    hashes = [
        digest
        for digest in dict.fromkeys([*cases, *(case for _, case in rungs_of)])
        if digest in known
    ]
    short = {
        digest: f"{known[digest].family}@{known[digest].world.removesuffix('cpu')}"
        for digest in hashes
    }
    alike = Counter(short.values())
    return {
        digest: short[digest] + known[digest].extras if alike[short[digest]] > 1 else short[digest]
        for digest in hashes
    }


def _row(v: Verdict, rung: LadderRow | None, names: dict[str, str], marks: _Marks) -> ScreenRow:
    caught = v.reason is Reason.CAUGHT
    value = "n/a" if v.value is None else _figure(v)
    of_point = rung is not None and in_table(v, rung.point.against)
    remark = " (waived)" if v.waived else ""
    if v.reason is Reason.WOULD_FAIL:
        remark = " (would fail)"
    return ScreenRow(
        name=names.get(v.case_hash, v.case),
        speedup=f"{rung.point.speedup:.2f}x" if rung is not None and of_point else "",
        value="caught, as it should" if caught else value,
        bound="" if caught else v.bound,
        status=f"{v.status}{remark}",
        mark="" if v.value is None else marks.of(v.metric, v.against),
        mfu=_mfu(rung),
    )


def _by_pilots(run: RunRecord, v: Verdict) -> str:
    """The pilots' figures of something that was not measured; empty where they saw nothing."""
    if (plan := run.plan_of.get(v.plan)) is not None:
        for contrast in (c for c in plan.contrasts if c.name == v.contrast):
            value = piloted(run, plan, contrast)
            return "" if value is None else f"{value:.2f} by pilots"
    return ""


def _recorded(rung: LadderRow, name: str, marks: _Marks) -> ScreenRow:
    """A rung that nothing was asked of; marked where nobody should rely on it."""
    point = rung.point
    status = str(Status.RECORDED if rung.verdict is None else rung.verdict.status)
    doubtful = rung.verdict is not None and rung.verdict.doubt
    return ScreenRow(
        name=name,
        speedup=f"{point.speedup:.2f}x",
        value=_ratio(point.efficiency, point.efficiency_low, point.efficiency_high),
        bound="",
        status=f"{status} ~" if doubtful else status,
        mark=marks.of("efficiency", point.against),
        mfu=_mfu(rung),
    )


def _mfu(rung: LadderRow | None) -> str:
    """Of devices whose peak is known."""
    return "" if rung is None or rung.row.mfu is None else f"{rung.row.mfu:.2f}"


def _figure(v: Verdict) -> str:
    metric = metrics.metric(v.metric)
    absolute = metric.form is Form.ABSOLUTE
    show = partial(si, unit=metric.unit) if absolute else "{:.2f}".format
    return f"{show(v.value or 0.0)} {judged_interval(v, show)}".rstrip()


def _ratio(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.2f}" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def _fitting(
    apart: Mapping[bool, Sequence[ScreenRow]],
) -> tuple[dict[bool, list[ScreenRow]], Counter[str]]:
    """The rows that a screen has room for, the worst ones, and how many others by their word."""
    words = [str(status) for status in SEVERITY]
    ranked = sorted(
        [*apart[False], *apart[True]], key=lambda row: words.index(row.status.partition(" ")[0])
    )
    hidden = {id(row) for row in ranked[MOST_ROWS:]}
    shown = {which: [r for r in rows if id(r) not in hidden] for which, rows in apart.items()}
    return shown, Counter(row.status for row in ranked[MOST_ROWS:])


def _laid_out(rows: Sequence[ScreenRow], header: str, width: int) -> list[str]:
    """The header and a line for each row: a long name is shortened, figures never are."""
    figures: list[Column[ScreenRow]] = [
        Column(header, 99, lambda r: f"{r.value} {r.mark}".rstrip(), left=True),
        Column("needs", 97, lambda r: r.bound),
        Column("MFU", 94, lambda r: r.mfu),
        Column("verdict", 98, lambda r: r.status, left=True),
    ]
    if width >= WIDE:
        figures.insert(0, Column("speedup", 95, lambda r: r.speedup))
        figures.insert(3, Column("attains", 93, lambda r: r.attains))
    figures = [figure for figure in figures if any(figure.cell(row) for row in rows)]
    taken = sum(
        2 + max(len(figure.header), *(len(figure.cell(row)) for row in rows)) for figure in figures
    )
    room = max(LEAST_NAME, width - taken - 2)
    name = Column[ScreenRow]("case @ ranks", 100, lambda r: shortened(r.name, room), left=True)
    return table([name, *figures], rows, width)


def _spent(run: RunRecord, width: int) -> list[str]:
    """Where the time went, for the rungs that lost most, and what to try for the first of them."""
    known = [rung for rung in rungs(run) if not rung.refused and rung.efficiency < KEEPS]
    if not known:
        return []
    known.sort(key=lambda r: (bool(run.stand_ins(r.arm.case)), r.efficiency))
    worst = known[:FEW]
    names = [f"{r.arm.case.family}@{r.arm.case.world.removesuffix('cpu')}" for r in worst]
    room = min(max(map(len, names)), max(LEAST_NAME, width // 2 - 9))
    shown = [" where the time went (ms a step), for what lost most"]
    for name, r in zip(names, worst, strict=True):
        words = _lost(r) if _shown_by_profile(r) else timeline.unexplained(r)
        shown += wrap(f"  {shortened(name, room):<{room}}  {words}", width, room + 4)
    remedies = (
        remedy
        for r in worst
        if _shown_by_profile(r)
        for remedy in advice(r.arm.case, r.expected, r.losses, r.budget, run.settings, r.launch.fed)
    )
    if (first := next(remedies, None)) is not None:
        gain = "" if first.gain is None else f" (at most +{first.gain:.2f} of efficiency)"
        shown += wrap(f"  try against {first.term}{gain}: {first.remedy}", width, 4)
    return [*shown, ""]


def _shown_by_profile(r: Rung) -> bool:
    """Whether the profile is of the step that was timed, and loses anything."""
    return not r.apart and r.losses.step_ns > r.losses.ideal_ns


def _lost(r: Rung) -> str:
    """``26.0 of 56.1 lost: compute 20.7, transfer 3.3``: the largest terms, most of the loss."""
    lost_ns = r.losses.step_ns - r.losses.ideal_ns
    terms = sorted(r.losses.excess_ns.items(), key=lambda item: -item[1])
    large = [(timeline.TERMS[term], ns) for term, ns in terms if ns > lost_ns / 10][:FEW]
    parts = ", ".join(f"{name} {float(ns) / 1e6:.1f}" for name, ns in large)
    return f"{float(lost_ns) / 1e6:.1f} of {float(r.losses.step_ns) / 1e6:.1f} lost: {parts}"


def _noticed(run: RunRecord, width: int) -> list[str]:
    """The first things that were noticed; of more their number."""
    every = [*notices.sentences(run, load=not why_open(run)), *run.notes]
    skipped = dict.fromkeys(
        verdict.detail for verdict in run.verdicts if verdict.status is Status.SKIP
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


def _next(run: RunRecord, folder: Path, rerun: str, width: int, page: Path | None) -> Iterator[str]:
    """Where everything stands, and what to type next."""
    if page is not None:
        yield f" page    {page}"
    yield f" all     scaleproof report {folder} --every"
    if not run.complete:
        yield f" next    scaleproof run --resume {folder}"
        return
    remedies = decide(run)
    for line in remedies[:FEW]:
        yield from wrap(f" next    {line}", width, 9)
    if not remedies and rerun:
        yield from wrap(f" again   {rerun}", width, 9)
