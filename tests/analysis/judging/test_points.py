"""Points of a scaling curve: what their speedup is relative to."""

from __future__ import annotations

import dataclasses

import pytest

from harness.analysis.judging.points import points
from harness.cases import Contrast
from harness.record import RunRecord


def test_points_against_a_node_count_nodes_not_ranks(sample_run: RunRecord) -> None:
    """Read the sample's two world sizes as 8 and 16 ranks: a speedup of 1.7 over two nodes is 0.86
    of linear.
    """
    (plan,) = sample_run.plans
    subject = next(a for a in plan.arms if a.name == "@2")
    baseline = next(a for a in plan.arms if a.name == "@1")
    speedup = Contrast(
        name="s", metric="speedup", subject="@2", baseline=("@1",), against="one_node", ideal=1.0
    )
    scaled = dataclasses.replace(
        plan,
        contrasts=(speedup,),
        arms=(
            dataclasses.replace(baseline, case=baseline.case.at(8)),
            dataclasses.replace(subject, case=subject.case.at(16, (8, 8))),
        ),
    )
    launches = tuple(
        dataclasses.replace(x, plan=scaled.hash) for x in sample_run.launches if x.arm != "plain"
    )
    run = dataclasses.replace(sample_run, plans=(scaled,), launches=launches)
    (point,) = points(run, scaled)
    assert point.speedup == pytest.approx(2 * point.efficiency)
    assert 0.7 < point.efficiency < 1.1
