"""The acceptance document as a page to print: its first sheet is for whoever signs."""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from markupsafe import Markup

from harness.base.documents import to_doc
from harness.base.numbers import si
from harness.cases import Form, metrics
from harness.features.acceptance.handover import Handover, Requirement
from harness.interface.report import fabric, sections, tables
from harness.interface.report.coverage import coverage
from harness.interface.report.page import scaling
from harness.interface.report.page.spent import spent
from harness.interface.report.tabled import Table
from harness.interface.report.templates import templates
from harness.interface.report.text import Column
from harness.record import RunRecord, Status, Verdict
from harness.record.archive import Manifest

HERE = Path(__file__).parent
WIDE = 10_000
#: What each word means for whoever signs.
MEANS = {
    Status.PASS: "Every requirement holds.",
    Status.FAIL: "At least one requirement does not hold.",
    Status.ERROR: "At least one training was wrong or broke, or a record does not verify.",
    Status.INCONCLUSIVE: "No requirement failed, but not all of them are decided.",
    Status.RECORDED: "Nothing was required: these are figures, not an acceptance.",
}


@dataclass(frozen=True, kw_only=True)
class Archived:
    """The archive that goes with a document: its file, its digest, what it holds."""

    file: str
    sha256: str
    manifest: Manifest


def render(
    found: Handover,
    runs: Sequence[tuple[RunRecord, Path]],
    archived: Archived,
    agreed: bytes | None = None,
) -> str:
    """The document of these runs; charts and parts of steps are theirs. ``agreed`` is the text of
    the contract.
    """
    folders = [f"checked/{packed.folder}" for packed in archived.manifest.runs]
    again = ["scaleproof", "handover", *folders, "--to", "again"]
    again += [] if agreed is None else ["--contract", f"{folders[0]}/contract.toml"]
    data = json.dumps(to_doc(found), separators=(",", ":")).replace("<", "\\u003c")
    return (
        templates(HERE)
        .get_template("handover.html.jinja")
        .render(
            found=found,
            sentence=sentence(found),
            means=MEANS[found.status],
            machines=list(dict.fromkeys(run.machine.title for run, _ in runs)),
            hosts=sum(len(run.nodes) or 1 for run, _ in runs[:1]),
            contract=contract(found.requirements).html("requirements"),
            evidence=evidence(found.requirements).html("evidence"),
            agreed="" if agreed is None else hashlib.sha256(agreed).hexdigest(),
            folders=folders,
            again=shlex.join(again),
            stand_ins=contract(found.stand_ins).html("rules of stand-ins"),
            waived=[r for r in found.requirements if r.rule.waiver is not None],
            runs=[_run(run) for run, _ in runs],
            drift=found.drift,
            archived=archived,
            files=sorted(archived.manifest.files.items()),
            reproduce=[shlex.join(s.command) for s in found.seals],
            data=Markup(data),
        )
    )


def sentence(found: Handover) -> str:
    """``11 of 14 rules hold (19 of 23 requirements), 1 fails, 2 were not measured``

    A rule is asked at several sizes; a requirement is a rule at one size, as reports count them.
    """
    total = len(found.requirements)
    judged = [v.counts for r in found.requirements for _, v in r.evidence]
    sizes = f"({judged.count(Status.PASS)} of {len(judged)} requirements)"
    noun = "rule holds" if total == 1 else "rules hold"
    parts = [f"{found.count(Status.PASS)} of {total} {noun} {sizes}"]
    failed = found.count(Status.FAIL) + found.count(Status.ERROR) - found.num_waived
    counted = (
        (failed, "fails", "fail"),
        (found.num_waived, "fails and is waived", "fail and are waived"),
        (found.count(Status.INCONCLUSIVE), "is undecided", "are undecided"),
        (found.count(None), "was not measured", "were not measured"),
        (found.count(Status.RECORDED), "cannot be judged here", "cannot be judged here"),
    )
    parts += [f"{n} {single if n == 1 else several}" for n, single, several in counted if n]
    return ", ".join(parts)


def contract(requirements: Sequence[Requirement]) -> Table[Requirement]:
    """A row for each requirement."""
    return Table(
        columns=[
            Column[Requirement]("verdict", 100, _word, left=True),
            Column("requirement", 96, lambda r: r.rule.name, left=True),
            Column("of", 60, lambda r: r.rule.case, left=True),
            Column("metric", 70, lambda r: r.rule.metric, left=True),
            Column("bound", 97, lambda r: r.rule.bound),
            Column("measured [95%]", 98, _measured, left=True),
            Column("at", 50, _where, left=True),
            Column("pairs", 30, lambda r: str(r.evidence[0][1].n) if r.evidence else ""),
            Column("cases", 40, lambda r: str(len(r.evidence)) if r.evidence else ""),
            Column("source of the bound", 20, lambda r: str(r.rule.source), left=True),
        ],
        rows=requirements,
    )


class Shown(NamedTuple):
    """A verdict, the requirement that it belongs to, and its run."""

    requirement: Requirement
    run: str
    verdict: Verdict


def evidence(requirements: Sequence[Requirement]) -> Table[Shown]:
    """A row for each case of each requirement: every world, not only the worst."""
    return Table(
        columns=[
            Column[Shown]("requirement", 96, lambda s: s.requirement.rule.name, left=True),
            Column("verdict", 100, lambda s: str(s.verdict.status), left=True),
            Column("case", 99, lambda s: s.verdict.case, left=True),
            Column("bound", 97, lambda s: s.requirement.rule.bound),
            Column(
                "measured [95%]", 98, lambda s: _figure(s.verdict) or s.verdict.detail, left=True
            ),
            Column("pairs", 30, lambda s: str(s.verdict.n)),
            Column("run", 20, lambda s: s.run, left=True),
        ],
        rows=[Shown(r, run, verdict) for r in requirements for run, verdict in r.evidence],
    )


def _word(r: Requirement) -> str:
    if r.status is None:
        return "NOT MEASURED"
    return f"{r.status} (waived)" if r.waived else str(r.status)


def _measured(r: Requirement) -> str:
    """The worst evidence's figure."""
    if not r.evidence:
        return ""
    v = r.evidence[0][1]
    if v.value is None:
        return v.detail
    return _figure(v)


def _where(r: Requirement) -> str:
    """The case of the worst evidence."""
    return r.evidence[0][1].case if r.evidence else ""


def _figure(v: Verdict) -> str:
    metric = metrics.metric(v.metric)

    def show(value: float) -> str:
        return si(value, metric.unit) if metric.form is Form.ABSOLUTE else f"{value:.3f}"

    span = "" if v.low is None or v.high is None else f" [{show(v.low)}, {show(v.high)}]"
    return "" if v.value is None else show(v.value) + span


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One run's part of the document."""

    run: RunRecord
    groups: Sequence[scaling.Group]
    spent: Sequence[object]
    fabric: Markup
    sections: Sequence[sections.ShownSection]
    suspects: Sequence[str]
    coverage: Sequence[tuple[str, str]]
    noise: Sequence[tuple[str, str]]


def _run(run: RunRecord) -> _Run:
    noise = [(f"{f.check}, before the run", f.text) for f in run.admission]
    loads = [x.foreign_load for x in run.launches if x.foreign_load is not None]
    if loads:
        usual = median(loads)
        most = max(loads)
        noise.append(
            (
                "load, during launches",
                f"others used {usual:.0%} of the ranks' cores, {most:.0%} at most",
            )
        )
    if run.launch_sd:
        noise.append(("launch to launch", f"{run.launch_sd:.2%} between like launches"))
    detectable = [v.mde for v in run.verdicts if v.mde is not None and v.rule]
    if detectable:
        noise.append(("smallest change seen", f"{min(detectable):.1%} to {max(detectable):.1%}"))
    links = [
        f"the link {p.a} - {p.b} is slow, while both nodes are fast"
        + (f": {si(p.bps, 'B/s')}" if p.bps is not None else "")
        for p in (run.suspects.links if run.suspects else ())
    ]
    rows = [*coverage(run, WIDE), *tables.cost(run, WIDE)]
    return _Run(
        run=run,
        groups=scaling.groups(run),
        spent=spent(run, {}),
        fabric=fabric.tabled(run).html(f"fabric of {run.run}") if run.fabric else Markup(""),
        sections=sections.shown(run),
        suspects=links,
        coverage=[(k, v) for k, v in (line.split(maxsplit=1) for line in rows if line.strip())],
        noise=noise,
    )
