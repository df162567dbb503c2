"""Every number of the page as one document, embedded in it: the page is an export, too."""

import json
from collections.abc import Sequence

from markupsafe import Markup

from harness.analysis.judging.points import points
from harness.analysis.rungs import rungs
from harness.base.documents import Json, fields_of, to_doc
from harness.interface.report import fabric, sections
from harness.interface.report.headline import decide, headline
from harness.interface.report.page.cases import Case
from harness.interface.report.page.scaling import Group
from harness.interface.report.page.spent import Spent
from harness.record import RunRecord


def embedded(
    run: RunRecord, cases: Sequence[Case], groups: Sequence[Group], spent: Sequence[Spent]
) -> Markup:
    """As the text of a script element, which nothing in it can end."""
    embedded_json = json.dumps(document(run, cases, groups, spent), separators=(",", ":"))
    return Markup(embedded_json.replace("<", "\\u003c"))


def document(
    run: RunRecord, cases: Sequence[Case], groups: Sequence[Group], spent: Sequence[Spent]
) -> dict[str, Json]:
    """In SI units, times of budgets in ns."""
    named = {"launches"}  # the record has them
    return {
        "run": run.run,
        "started_at": run.started_at,
        "complete": run.complete,
        "machine": to_doc(run.machine),
        "headline": headline(run),
        "decide": decide(run),
        "verdicts": [
            {k: v for k, v in fields_of(x).items() if k not in named} for x in run.verdicts
        ],
        "points": [
            {"plan": p.name, **to_doc(point)} for p in run.plans for point in points(run, p)
        ],
        "cases": [case.document for case in cases],
        "scaling": [row for group in groups for row in group.table.records()],
        "spent": [
            {
                "case": r.arm.case.id,
                "against": r.against,
                "step_ns": float(r.losses.step_ns),
                "ideal_ns": float(r.losses.ideal_ns),
                "excess_ns": {str(t): float(e) for t, e in r.losses.excess_ns.items()},
                "terms_ns": {str(t): r.budget.mean_ns(t) for t in r.losses.excess_ns},
            }
            for r in rungs(run)
        ],
        "parts_ms": {part.title: part.table.records() for part in spent},
        "fabric": to_doc(run.fabric),
        "swept": fabric.tabled(run).records(),
        **sections.data(run),
    }
