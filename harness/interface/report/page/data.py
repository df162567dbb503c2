"""Collect every number of the page in one JSON document, which the page embeds as an export."""

import json
from collections.abc import Sequence

from markupsafe import Markup

from harness.analysis.judging.points import points
from harness.analysis.results import document as result_document, results
from harness.analysis.rungs import rungs
from harness.base.documents import Json, to_doc
from harness.interface.report import fabric, sections
from harness.interface.report.headline import decide, headline
from harness.interface.report.page.cases import Case
from harness.interface.report.page.scaling_charts import ChartGroup
from harness.interface.report.page.spent import Spent
from harness.record import RunRecord


def embedded(
    run: RunRecord, cases: Sequence[Case], groups: Sequence[ChartGroup], spent: Sequence[Spent]
) -> Markup:
    """Return the document as the text of a script element.

    Every ``<`` is escaped, so no string in the document can close the element.
    """
    embedded_json = json.dumps(document(run, cases, groups, spent), separators=(",", ":"))
    return Markup(embedded_json.replace("<", "\\u003c"))


def document(
    run: RunRecord, cases: Sequence[Case], groups: Sequence[ChartGroup], spent: Sequence[Spent]
) -> dict[str, Json]:
    """Return all numbers of the page in SI units, except the times of budgets, which are in ns."""
    return {
        "run": run.run,
        "started_at": run.started_at,
        "complete": run.complete,
        "machine": to_doc(run.machine),
        "headline": headline(run),
        "decide": decide(run),
        "verdicts": [
            result_document(result) | {"pairs": list(result.pairs), "again": list(result.again)}
            for result in results(run)
        ],
        "points": [
            {"plan": plan.name, **to_doc(point)}
            for plan in run.plans
            for point in points(run, plan)
        ],
        "cases": [case.document for case in cases],
        "scaling": [row for group in groups for row in group.table.records()],
        "spent": [
            {
                "case": rung.arm.case.id,
                "against": rung.against,
                "step_ns": float(rung.losses.step_ns),
                "ideal_ns": float(rung.losses.ideal_ns),
                "excess_ns": {
                    str(term): float(value) for term, value in rung.losses.excess_ns.items()
                },
                "terms_ns": {
                    str(term): rung.budget.mean_ns(term) for term in rung.losses.excess_ns
                },
            }
            for rung in rungs(run)
        ],
        "parts_ms": {part.title: part.table.records() for part in spent},
        "fabric": to_doc(run.fabric),
        "swept": fabric.tabled(run).records(),
        **sections.data(run),
    }
