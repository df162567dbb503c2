"""Comparisons of cases: if compressors are among them, their costs are shown for any recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.choices import compressors
from harness.cases import CaseSpec, Plan
from harness.cases.recipes import beside
from harness.interface.report import side_by_side
from harness.interface.report.page.page import render
from harness.record import RunRecord


@pytest.fixture(scope="module")
def run(main_job: RunRecord) -> RunRecord:
    """Return launches of the main job at 4 ranks, with and without a compressor, as one plan."""
    plan, topk = arm(main_job, "compressed:topk/paced-small/weak")
    arms = {
        "dense": arm(main_job, "ddp/paced-small/weak"),
        "topk": (plan, topk),
        "lost": (main_job.plans[0], replace(topk, seed=7)),  # No launch of it was measured.
    }
    cases = {name: case for name, (_, case) in arms.items()}
    made = beside("every codec", cases, ("throughput_ratio", "sent_bytes"))
    launches = [
        replace(x, plan=made.hash, arm=name)
        for name, (plan, _) in arms.items()
        for x in main_job.launches
        if x.plan == plan.hash and x.arm == "@4"
    ]
    return replace(main_job, plans=(made,), launches=tuple(launches), verdicts=())


def arm(job: RunRecord, name: str) -> tuple[Plan, CaseSpec]:
    """Return a scaling sweep of the job and its case on 4 ranks."""
    plan = next(plan for plan in job.plans if plan.name == name)
    return plan, next(arm.case for arm in plan.arms if arm.name == "@4")


def test_a_plan_of_compressors_shows_break_even_rates_in_every_report(run: RunRecord) -> None:
    (plan,) = run.plans
    costs = {cost.name: cost for cost in compressors.costs(run, plan)}
    (table,) = side_by_side.plan_tables(run)
    assert table.title == "every codec"
    rows = {record[""]: record for record in table.table.records()}
    assert rows["topk"]["B/param"] == costs["topk"].bytes_per_parameter
    assert rows["topk"]["wins below"] == costs["topk"].pays["dense"].rate > 0
    assert rows["dense"]["wins below"] is rows["lost"]["wins below"] is None
    assert any("wins below: the link rate" in note for note in table.notes)
    shown = "\n".join(table.lines(80))
    assert "wins below" in shown and max(map(len, shown.splitlines())) <= 80
    page = render(run)
    assert "wins below" in page and "step over link rates" in page


def test_plans_without_compressors_have_no_such_columns(run: RunRecord) -> None:
    (plan,) = run.plans
    dense, topk, _ = plan.arms
    plain = beside(
        "others", {"topk": topk.case, "dense": dense.case, "more": dense.case}, ("step_s",)
    )
    (table,) = side_by_side.plan_tables(replace(run, plans=(plain,)))
    assert not {"wins below", "B/param"} & {column.header for column in table.table.columns}
    assert not table.curves
