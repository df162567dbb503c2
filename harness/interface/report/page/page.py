"""One self-contained HTML page per run. No network, prints well.

    record (and the files beside it) -> the rows of every section -> page.html.jinja -> one file

Its sections are the files of this folder; its tables are those of the terminal.
"""

import shlex
from collections import Counter
from pathlib import Path

from harness.analysis.judging import notices, verdicts
from harness.analysis.judging.standard import FIRST_LOOK
from harness.base.files import FullDiskError
from harness.interface.report import fabric, script, sections, tables, timeline
from harness.interface.report.coverage import coverage
from harness.interface.report.headline import decide, headline
from harness.interface.report.page import compressed, data, facts, scaling
from harness.interface.report.page.cases import anchors, cases
from harness.interface.report.page.judged import judged
from harness.interface.report.page.spent import spent
from harness.interface.report.sides import beside
from harness.interface.report.templates import templates
from harness.record import RunRecord
from harness.record.outcome import SEVERITY
from harness.record.store import write_text

#: Wider than any sentence: the browser wraps.
WIDE = 10_000
#: Templates lie beside their code, what they share above it.
HERE = Path(__file__).parent


def render(run: RunRecord, folder: Path | None = None) -> str:
    """The page; without the run's ``folder`` it has no drawings of samples and traces."""
    counts = Counter(v.status for v in run.verdicts)
    linked = anchors(run)
    of_cases = cases(run, folder)
    groups = scaling.groups(run)
    lost = spent(run, linked)
    return (
        templates(HERE)
        .get_template("page.html.jinja")
        .render(
            run=run,
            headline=headline(run),
            decide=decide(run),
            counts=[(s, counts[s]) for s in SEVERITY if counts[s]],
            notes=[*notices.findings(run), *run.notes],
            verdicts=judged(run, linked),
            together=verdicts.together(run.verdicts),
            pairs=FIRST_LOOK,
            groups=groups,
            beside=[
                (plan.name, beside.of_plan(run, plan).html(plan.name), beside.notes(plan))
                for plan in beside.plans(run)
            ],
            codecs=compressed.sections(run),
            stand_ins=any(run.stand_ins(a.case) for p in run.plans for a in p.arms),
            spent=lost,
            explained=[line.strip() for line in timeline.remarks(run, WIDE)],
            cases=of_cases,
            work=facts.work,
            busy=facts.busy,
            fabric=fabric.tabled(run).html("fabric") if run.fabric else "",
            fabric_note=fabric.note(run),
            sections=sections.shown(run),
            script=[line.strip() for line in script.lines(run, WIDE)],
            coverage=[line.split(maxsplit=1) for line in coverage(run, WIDE)],
            cost=[line.strip().split(maxsplit=1)[1] for line in tables.cost(run, WIDE) if line],
            rerun=shlex.join(run.settings.argv),
            facts=facts.facts(run),
            nodes=facts.nodes(run).html("nodes") if len(run.nodes) > 1 else "",
            data=data.embedded(run, of_cases, groups, lost),
        )
    )


def write(run: RunRecord, folder: Path) -> Path | None:
    """The page beside a run's record; None where there is no room, or nobody may write."""
    file = folder / "report.html"
    try:
        write_text(file, render(run, folder))
    except (OSError, FullDiskError):
        return None
    return file
