"""Every number of the page as one document, embedded in it: the page is an export, too."""

import json

from markupsafe import Markup

from harness.analysis.judging.points import points
from harness.analysis.rungs import rungs
from harness.base.documents import Json, fields_of, to_doc
from harness.interface.report.headline import decide, headline
from harness.interface.report.page.cases import Case
from harness.record import RunRecord


def embedded(run: RunRecord, cases: list[Case]) -> Markup:
    """As the text of a script element, which nothing in it can end."""
    told = json.dumps(document(run, cases), separators=(",", ":"))
    return Markup(told.replace("<", "\\u003c"))


def document(run: RunRecord, cases: list[Case]) -> dict[str, Json]:
    """In SI units, times of budgets in ns."""
    named = {"launches"}  # the record has them
    return {
        "run": run.run, "started_at": run.started_at, "complete": run.complete,
        "machine": to_doc(run.machine), "headline": headline(run), "decide": decide(run),
        "verdicts": [
            {k: v for k, v in fields_of(x).items() if k not in named} for x in run.verdicts
        ],
        "points": [
            {"plan": p.name, **to_doc(point)} for p in run.plans for point in points(run, p)
        ],
        "cases": [case.figures for case in cases],
        "spent": [
            {
                "case": r.arm.case.id, "against": r.against, "step_ns": float(r.losses.step_ns),
                "ideal_ns": float(r.losses.ideal_ns),
                "excess_ns": {str(t): float(e) for t, e in r.losses.excess_ns.items()},
                "terms_ns": {str(t): r.budget.mean_ns(t) for t in r.losses.excess_ns},
            }
            for r in rungs(run)
        ],
        "fabric": to_doc(run.fabric), "recoveries": to_doc(run.recoveries),
    }  # fmt: skip
