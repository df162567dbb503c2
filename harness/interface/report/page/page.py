"""Render a run as one self-contained HTML page, which needs no network and prints well.

    record (and the files in its folder) -> the rows of every section -> page.html.jinja -> one file

Each section has a file in this folder. Its tables are the tables that the terminal prints.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.analysis import earlier
from harness.analysis.judging import notices
from harness.analysis.judging.judge import FIRST_LOOK
from harness.analysis.results import discoveries, tally
from harness.base.files import FullDiskError
from harness.interface.report import fabric, script, sections, side_by_side, tables
from harness.interface.report.headline import brief, decide, headline, why_open
from harness.interface.report.page import data, facts, perfetto, scaling_charts
from harness.interface.report.page.cases import Case, anchors, cases
from harness.interface.report.page.judged import judged
from harness.interface.report.page.measured import ONE_STEP, Drawing
from harness.interface.report.page.spent import WIDE, Spent, spent
from harness.interface.report.tables import coverage
from harness.interface.report.templates import templates
from harness.interface.report.text import shown
from harness.record import RunRecord
from harness.record.store import write_text

#: The folder of the page's templates. Templates that several pages share are in the parent folder.
HERE = Path(__file__).parent


def render(run: RunRecord, folder: Path | None = None) -> str:
    """Return the HTML of the page. Without the run's ``folder`` the page has no drawings of samples
    and traces.
    """
    linked = anchors(run)
    of_cases = cases(run, folder)
    groups = scaling_charts.groups(run)
    lost = spent(run, linked)
    return (
        templates(HERE)
        .get_template("page.html.jinja")
        .render(
            run=run,
            question=facts.question(run),
            headline=headline(run),
            why=why_open(run),
            decide=decide(run),
            counts=tally(run).parts,
            notes=[
                brief(run, note)
                for note in (*notices.sentences(run, load=not why_open(run)), *run.notes)
            ],
            verdicts=judged(run, linked, {} if folder is None else earlier.values(run, folder)),
            together=discoveries(run),
            pairs=FIRST_LOOK,
            groups=groups,
            beside=side_by_side.plan_tables(run),
            stand_ins=any(run.stand_ins(arm.case) for plan in run.plans for arm in plan.arms),
            spent=lost,
            front=_front(of_cases, lost),
            cases=of_cases,
            work=facts.work,
            busy=facts.busy,
            fabric=fabric.tabled(run).html("fabric") if run.fabric else "",
            fabric_note=fabric.note(run),
            sections=sections.shown(run),
            trace=perfetto.embedded(run, folder),
            script=script.sections(run),
            coverage=[line.split(maxsplit=1) for line in coverage(run, WIDE)],
            cost=[line.strip().split(maxsplit=1)[1] for line in tables.cost(run, WIDE) if line],
            rerun=shlex.join(run.settings.argv),
            facts=facts.facts(run),
            nodes=facts.nodes(run).html("nodes") if len(run.nodes) > 1 else "",
            data=data.embedded(run, of_cases, groups, lost),
        )
    )


def _front(of_cases: Sequence[Case], lost: Sequence[Spent]) -> tuple[Case, Drawing] | None:
    """Return the case that loses the largest share of its time, and the drawing of one step.

    Simulated devices are drawn only if there are no others.
    """
    by_anchor = {case.anchor: case for case in of_cases}
    worst_first = [by_anchor[part.anchor] for part in lost if part.anchor in by_anchor]
    for case in sorted(worst_first, key=lambda case: bool(case.row.case.stand_in)):
        for figure in case.drawn:
            if figure.title == ONE_STEP and figure.svg:
                return case, figure
    return None


def write(run: RunRecord, folder: Path) -> str:
    """Write the page next to a run's record. Return its path, or why it could not be written."""
    file = folder / "report.html"
    try:
        write_text(file, render(run, folder))
    except OSError as error:
        return f"not written, {error.strerror or error}: {shown(file)}"
    except FullDiskError as error:
        return f"not written, {error.what}: {shown(file)}"
    return str(shown(file))
