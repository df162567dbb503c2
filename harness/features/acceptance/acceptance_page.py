"""Render the acceptance document as a page to print. Its first sheet is for the signatures."""

import datetime
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from markupsafe import Markup

from harness.analysis.results import results
from harness.base.documents import to_doc
from harness.base.formatting import si
from harness.features.acceptance.clauses import ClauseEvidence, Requirement
from harness.features.acceptance.contract import Terms, due
from harness.features.acceptance.handover import CoveredNode, Handover
from harness.features.acceptance.others import OthersResult
from harness.interface.report import fabric, figures, sections, tables, text
from harness.interface.report.page import scaling_charts
from harness.interface.report.page.spent import spent
from harness.interface.report.tabled import Table
from harness.interface.report.tables import coverage
from harness.interface.report.templates import templates
from harness.interface.report.text import Column
from harness.record import RunRecord, Status
from harness.record.archive import Manifest

HERE = Path(__file__).parent
WIDE = 10_000
Row = TypeVar("Row")
#: The largest number of columns of a table that fit on a sheet of A4.
MOST_COLUMNS = 9
#: The statuses that end an acceptance.
DECIDED = (Status.PASS, Status.FAIL)
#: The kinds of measurements other than trainings that a run can include.
KINDS = ("bandwidth of links", "recovery from faults", "nodes in pairs")
#: Definitions of the document's terms, for both parties.
DEFINITIONS = (
    ("launch", "one start of new processes on all ranks of a training; the unit of replication"),
    ("pair", "a launch of the subject and one of its baseline, measured in the same block"),
    ("efficiency", "samples per second per rank, relative to the baseline; 1 is perfect scaling"),
    ("[95%]", "an interval; each of its ends is wrong with a probability of at most 5 %, even if"
     " the judge inspects it after every pair"),
    ("PASS", "the whole interval meets the bound, with a margin for slow launches that were not"
     " observed"),
    ("FAIL", "the whole interval misses the bound, and the interval of a new set of launches"
     " misses it too"),
    ("INCONCLUSIVE", "neither PASS nor FAIL: there were too few pairs, the host was noisy, or the"
     " value was too close to the bound"),
    ("NOT MEASURED", "no launch matches the clause"),
    ("SKIP", "no launch could match the clause: the runs had no device of that kind"),
    ("RECORDED", "measured, but the bound is provisional, so nothing can pass or fail it"),
    ("ERROR", "a training was incorrect or crashed, or a record does not verify"),
    ("accepted", "the runs labelled “held against”; a PASS meets the required share of the upper"
     " end of their interval, and a FAIL misses the required share of the lower end"),
    ("chain", "a line for every launch, each with the digest of the line before"),
)  # fmt: skip
#: The meaning of the document's status, for the parties that sign.
MEANS = {
    Status.PASS: "Every requirement is met.",
    Status.FAIL: "At least one requirement is not met.",
    Status.ERROR: "At least one training was incorrect or crashed, or a record does not verify.",
    Status.INCONCLUSIVE: "No requirement failed, but at least one is inconclusive.",
    Status.RECORDED: "There were no requirements: this document has measurements only.",
}


@dataclass(frozen=True, kw_only=True)
class Archived:
    """The archive that belongs to a document: its file, its digest and its manifest."""

    file: str
    sha256: str
    manifest: Manifest


def render(
    handover: Handover,
    runs: Sequence[tuple[RunRecord, Path]],
    archived: Archived,
    agreed: bytes | None = None,
    others: Sequence[OthersResult] = (),
) -> str:
    """Return the document of these runs as HTML.

    ``agreed`` is the text of the contract, and ``others`` are results of other tools.
    """
    folders = [f"checked/{packed.folder}" for packed in archived.manifest.runs]
    before = len(handover.accepted)
    again = ["scaleproof", "accept", "report", *folders[: len(folders) - before], "--to", "again"]
    again += [] if agreed is None else ["--contract", f"{folders[0]}/contract.toml"]
    for folder in folders[len(folders) - before :]:
        again += ["--accepted", folder]
    data = json.dumps(to_doc(handover), separators=(",", ":")).replace("<", "\\u003c")
    terms = handover.contract.terms if handover.contract is not None else Terms()
    return (
        templates(HERE)
        .get_template("handover.html.jinja")
        .render(
            handover=handover,
            terms=terms,
            sentence=sentence(handover),
            means=MEANS[handover.status],
            decided=handover.status in DECIDED,
            unsigned=_unsigned(handover),
            footer=_footer(handover, archived),
            parties=_parties(handover, terms),
            contract=contract(handover.requirements).html("requirements"),
            clauses=_clauses(handover).html("clauses"),
            evidence=evidence(handover.requirements).html("evidence"),
            nodes=_nodes(handover).html("nodes"),
            covered=covered(handover),
            late=[
                requirement.rule.name for requirement in handover.requirements if requirement.late
            ],
            remedy=_remedy(handover, terms),
            dues=_dues(handover),
            untested=list(untested(handover, [run for run, _ in runs])),
            open=list(_open(handover)),
            definitions=DEFINITIONS,
            others=others,
            agreed="" if agreed is None else hashlib.sha256(agreed).hexdigest(),
            folders=folders,
            again=shlex.join(again),
            stand_ins=contract(handover.stand_ins).html("thresholds on simulated hardware"),
            waived=[
                requirement
                for requirement in handover.requirements
                if requirement.rule.waiver is not None
            ],
            runs=[_run(run) for run, _ in runs],
            archived=archived,
            files=sorted(archived.manifest.files.items()),
            seals=[
                (name, digest)
                for name, digest in sorted(archived.manifest.files.items())
                if "/launches/" not in name
            ],
            narrow=narrow,
            reproduce=[shlex.join(seal.command) for seal in handover.seals],
            data=Markup(data),
        )
    )


def _unsigned(handover: Handover) -> str:
    """Return a warning about runs that are not signed, or an empty text if all are."""
    runs = [seal.run for seal in handover.seals if not seal.signer]
    if not runs:
        return ""
    few = (
        "the run was"
        if len(handover.seals) == 1
        else f"{len(runs)} of {len(handover.seals)} runs were"
    )
    return f"{few} not signed by the party that measured, so the whole record could be invented."


def _footer(handover: Handover, archived: Archived) -> str:
    """Return the footer that links every page to this document.

    The footer is a string in the style sheet of the page. Characters that could end this string are
    replaced.
    """
    number = handover.contract.terms.number if handover.contract is not None else ""
    title = f"contract {number}, " if number else ""
    text = f"{title}{handover.made_on}, {handover.status}, archive {archived.sha256[:16]}"
    return re.sub(r"[^\w .,:/()+-]", " ", text)


def _parties(handover: Handover, terms: Terms) -> list[tuple[str, str]]:
    """Return the parties, the place and the system, with blanks for unknown facts.

    The blanks are filled in by hand.
    """
    by_hand = "________________________"
    hardware = dict.fromkeys(node.hardware for node in handover.nodes)
    system = terms.system or "; ".join(hardware)
    return [
        ("buyer", terms.buyer or by_hand),
        ("supplier", terms.supplier or by_hand),
        ("place", terms.place or by_hand),
        ("system", system),
        ("measured part", covered(handover)),
    ]


def covered(handover: Handover) -> str:
    """Return how much of the system was measured, such as ``3 of 64 nodes (5 %)``."""
    measured = len(handover.nodes)
    noun = "node" if measured == 1 else "nodes"
    whole = handover.contract.terms.nodes if handover.contract is not None else 0
    if not whole:
        return f"{measured} {noun}; the contract does not state how many nodes the system has"
    if measured > whole:
        return f"{measured} {noun}, more than the {whole} in the contract"
    return f"{measured} of {whole} nodes ({measured / whole:.0%})"


def _remedy(handover: Handover, terms: Terms) -> str:
    if not terms.remedy_days:
        return "no remedy period was agreed on"
    last = datetime.date.fromisoformat(handover.made_on) + datetime.timedelta(
        days=terms.remedy_days
    )
    return (
        f"requirements that are not met may be repaired and measured again within"
        f" {terms.remedy_days} days, until {last.isoformat()}"
    )


def _dues(handover: Handover) -> list[tuple[str, str]]:
    """Return the dates by which clauses must be measured again."""
    made = datetime.date.fromisoformat(handover.made_on)
    dates = (
        (requirement.clause.name, due(requirement.clause, made))
        for requirement in handover.requirements
    )
    return [(name, on.isoformat()) for name, on in dates if on is not None]


def untested(handover: Handover, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield the parts of the system to which the verdict does not apply."""
    for requirement in handover.requirements:
        if requirement.unmeasured:
            units = ", ".join(requirement.unmeasured)
            yield f"{requirement.rule.name}: not measured: {units}"
        elif requirement.status is None:
            reason = f"no measurement matches {requirement.rule.case}"
            yield f"{requirement.rule.name}: {requirement.skipped or reason}"
    idle = [
        f"{node.host} ({node.devices} of {node.of})"
        for node in handover.nodes
        if node.devices < node.of
    ]
    if idle:
        yield f"devices that were used in no judged training: {', '.join(idle)}"
    whole = handover.contract.terms.nodes if handover.contract is not None else 0
    if not whole:
        yield "nodes without a run: the contract does not state how many nodes the system has"
    elif len(handover.nodes) < whole:
        yield f"{whole - len(handover.nodes)} of the {whole} nodes of the system"
    if handover.beyond:
        names = ", ".join(name for name, _ in handover.beyond)
        yield f"thresholds for other hardware or measurements: {names}"
    kinds = {name for run in runs for name, there in _measured_kinds(run) if there}
    lacking = [name for name in KINDS if name not in kinds]
    if lacking:
        yield f"not part of these runs: {', '.join(lacking)}"
    yield "storage, security, power and cooling, and everything that no clause names"


def _measured_kinds(run: RunRecord) -> Iterator[tuple[str, bool]]:
    yield KINDS[0], bool(run.fabric)
    yield KINDS[1], bool(run.recoveries) or bool(run.played)
    yield KINDS[2], run.suspects is not None


def _open(handover: Handover) -> Iterator[tuple[str, str]]:
    """Yield each undecided clause by name, and what is needed to decide it."""
    for requirement in handover.requirements:
        if requirement.status is None or (requirement.unmeasured and not requirement.evidence):
            lacking = f"measure {', '.join(requirement.unmeasured) or requirement.rule.case}"
            yield (
                requirement.rule.name,
                "; ".join(filter(None, (requirement.skipped, requirement.clause.by or lacking))),
            )
        elif requirement.status not in DECIDED:
            waiting = [
                evidence.result
                for evidence in requirement.evidence
                if evidence.result.status is Status.INCONCLUSIVE
            ]
            reasons = dict.fromkeys(result.detail for result in waiting)
            more = max((result.more for result in waiting if result.more), default=0)
            pairs = f"; about {more} more pairs would decide" if more else ""
            units = (
                f"; not measured: {', '.join(requirement.unmeasured)}"
                if requirement.unmeasured
                else ""
            )
            yield (
                requirement.rule.name,
                f"{'; '.join(reasons) or 'its bound is provisional'}{pairs}{units}",
            )


def _clauses(handover: Handover) -> Table[Requirement]:
    """Return a table of the clauses: their text, who requires them, and the consequence."""
    rows = handover.requirements if handover.contract is not None else ()
    return Table(
        columns=[
            Column[Requirement]("clause", 100, lambda r: r.rule.name, left=True),
            Column("says", 99, lambda r: r.clause.says, left=True),
            Column("asked by", 60, lambda r: r.clause.asked_by, left=True),
            Column("of each", 50, lambda r: r.clause.per, left=True),
            Column("to be measured", 40, lambda r: r.clause.sampling, left=True),
            Column("consequence", 30, lambda r: r.clause.consequence, left=True),
            Column("bound is a", 20, lambda r: str(r.rule.source), left=True),
        ],
        rows=rows,
    )


def narrow(table: Table[Row]) -> Table[Row]:
    """Return a table that fits on A4: the most important columns in their original order."""
    by_worth = sorted(table.shown_columns, key=lambda column: column.keep, reverse=True)[
        :MOST_COLUMNS
    ]
    return replace(table, columns=[c for c in table.shown_columns if c in by_worth])


def _nodes(handover: Handover) -> Table[CoveredNode]:
    """Return a table of the nodes by name."""
    return Table(
        columns=[
            Column[CoveredNode]("node", 100, lambda n: n.host, left=True),
            Column("hardware", 90, lambda n: n.hardware, left=True),
            Column("devices that trained", 80, lambda n: f"{n.devices} of {n.of}"),
            Column("runs", 50, lambda n: "\n".join(n.runs), left=True),
        ],
        rows=handover.nodes,
    )


def sentence(handover: Handover) -> str:
    """Return ``11 of 14 rules are met (19 of 23 results), 1 fails, 2 were not measured``.

    A rule can apply at several world sizes. A result is one rule at one size, as in reports.
    """
    total = len(handover.requirements)
    judged = [
        evidence.result.counts
        for requirement in handover.requirements
        for evidence in requirement.evidence
    ]
    sizes = f"({judged.count(Status.PASS)} of {len(judged)} results)"
    kind = "rule" if handover.contract is None else "clause"
    noun = f"{kind} is met" if total == 1 else f"{kind}s are met"
    parts = [f"{handover.count(Status.PASS)} of {total} {noun} {sizes}"]
    failed = handover.count(Status.FAIL) + handover.count(Status.ERROR) - handover.num_waived
    counted = (
        (failed, "fails", "fail"),
        (handover.num_waived, "fails and is waived", "fail and are waived"),
        (handover.count(Status.INCONCLUSIVE), "is inconclusive", "are inconclusive"),
        (handover.count(Status.NOT_COMPARABLE), "is not comparable", "are not comparable"),
        (handover.count(None), "was not measured", "were not measured"),
        (handover.count(Status.RECORDED), "cannot be judged here", "cannot be judged here"),
    )
    parts += [f"{n} {singular if n == 1 else plural}" for n, singular, plural in counted if n]
    return ", ".join(parts)


def contract(requirements: Sequence[Requirement]) -> Table[Requirement]:
    """Return a row for each clause: its status, its bound, and its worst figure."""
    return Table(
        columns=[
            Column[Requirement]("verdict", 100, _word, left=True),
            Column("clause", 99, lambda r: r.rule.name, left=True),
            Column("asks", 97, lambda r: r.clause.asks, left=True),
            Column("measured [95%]", 98, _measured, left=True),
            Column("at", 50, _where, left=True),
            Column("pairs", 30, lambda r: str(r.evidence[0].result.n) if r.evidence else ""),
            Column("units", 60, _units, left=True),
        ],
        rows=requirements,
    )


def screen(requirements: Sequence[Requirement], width: int) -> list[str]:
    """Return the document for a terminal.

    Each clause has two paragraphs, because a table would be too wide.
    """
    lines = []
    for requirement in requirements:
        lines += text.wrap(
            f" {_word(requirement):<13} {requirement.rule.name}: {requirement.clause.asks}",
            width,
            15,
        )
        shown = [
            _measured(requirement),
            _needs(requirement),
            f"at {_where(requirement)}" if _where(requirement) else "",
            _units(requirement),
        ]
        lines += text.wrap(f"{'':15}{', '.join(filter(None, shown))}", width, 15)
    return lines


class Shown(NamedTuple):
    """A verdict and its requirement."""

    requirement: Requirement
    evidence: ClauseEvidence


def evidence(requirements: Sequence[Requirement]) -> Table[Shown]:
    """Return a row for each verdict of each requirement: every case, world size and unit."""
    return Table(
        columns=[
            Column[Shown]("verdict", 100, lambda s: str(s.evidence.result.status), left=True),
            Column("clause", 96, lambda s: s.requirement.rule.name, left=True),
            Column("unit", 95, lambda s: s.evidence.unit, left=True),
            Column("case", 99, lambda s: s.evidence.result.case, left=True),
            Column("bound", 97, lambda s: s.evidence.result.bound, left=True),
            Column("measured [95%]", 98, _figure_or_why, left=True),
            Column("pairs", 30, lambda s: str(s.evidence.result.n)),
            Column("why", 20, lambda s: s.evidence.result.detail, left=True),
        ],
        rows=[Shown(requirement, e) for requirement in requirements for e in requirement.evidence],
    )


def _figure_or_why(shown: Shown) -> str:
    return figures.figure(shown.evidence.result) or "none"


def _word(r: Requirement) -> str:
    if r.status is None:
        return str(Status.SKIP) if r.skipped else "NOT MEASURED"
    return f"{r.status} (waived)" if r.waived else str(r.status)


def _measured(r: Requirement) -> str:
    """Return the figure of the worst evidence, or the reason why there is no figure."""
    if not r.evidence:
        return f"{r.skipped}; {_how(r)}".strip("; ")
    result = r.evidence[0].result
    return figures.figure(result) or result.detail


def _how(r: Requirement) -> str:
    """Return the command that measures the clause, if ordinary runs do not measure it."""
    return f"measure it: {r.clause.by}" if r.clause.by else ""


def _needs(r: Requirement) -> str:
    """Return the bound that follows from an accepted record."""
    from_record = r.clause.of_accepted is not None and r.evidence
    return f"needs {r.evidence[0].result.bound}" if from_record else ""


def _where(r: Requirement) -> str:
    """Return the case and the unit of the worst evidence."""
    if not r.evidence:
        return ""
    unit = r.evidence[0].unit
    return f"{r.evidence[0].result.case}{f' of {unit}' if unit else ''}"


def _units(r: Requirement) -> str:
    """Return ``62 of 64 pass``: the number of units that pass, or an empty text without units."""
    named = [unit for unit in r.units if unit]
    if not named:
        return ""
    bad = {evidence.unit for evidence in r.evidence if evidence.result.status is not Status.PASS}
    held = sum(u not in bad and u not in r.unmeasured for u in named)
    return f"{held} of {len(named)} pass"


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The part of the document about one run."""

    run: RunRecord
    groups: Sequence[scaling_charts.ChartGroup]
    spent: Sequence[object]
    fabric: Markup
    sections: Sequence[sections.ShownSection]
    suspects: Sequence[str]
    coverage: Sequence[tuple[str, str]]
    noise: Sequence[tuple[str, str]]


def _run(run: RunRecord) -> _Run:
    noise = [(f"{finding.check}, before the run", finding.text) for finding in run.admission]
    loads = [launch.foreign_load for launch in run.launches if launch.foreign_load is not None]
    if loads:
        usual = median(loads)
        most = max(loads)
        noise.append(
            (
                "load, during launches",
                f"other processes used {usual:.0%} of the ranks' cores, {most:.0%} at most",
            )
        )
    if run.launch_sd:
        noise.append(("between launches", f"{run.launch_sd:.2%} between identical launches"))
    detectable = [result.mde for result in results(run) if result.mde is not None and result.rule]
    if detectable:
        noise.append(("detectable change", f"{min(detectable):.1%} to {max(detectable):.1%}"))
    links = [
        f"the link {pair.a} - {pair.b} is slow, although both nodes are fast"
        + (f": {si(pair.bps, 'B/s')}" if pair.bps is not None else "")
        for pair in (run.suspects.links if run.suspects else ())
    ]
    rows = [*coverage(run, WIDE), *tables.cost(run, WIDE)]
    return _Run(
        run=run,
        groups=scaling_charts.groups(run),
        spent=spent(run, {}),
        fabric=fabric.tabled(run).html(f"fabric of {run.run}") if run.fabric else Markup(""),
        sections=sections.shown(run),
        suspects=links,
        coverage=[(k, v) for k, v in (line.split(maxsplit=1) for line in rows if line.strip())],
        noise=noise,
    )
