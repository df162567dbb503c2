"""Strategies that compute other updates are measured by how they learn, not by speed alone."""

from __future__ import annotations

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Role, Site
from harness.cases.metrics import metric
from harness.cases.recipes import beside, ladder, learning
from harness.cases.targets import case_plan, normalise

KNOWN, SITE = Catalogue(), Site(device=Device.CPU, backend="gloo", nodes=(2,))
CASE = SITE.case("diloco/decoder-nano", knobs={"diloco.period": 4})


def test_comparing_only_the_speed_of_such_a_strategy_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        normalise(ladder(CASE, [1, 2]), KNOWN)
    assert "does not show how well it learns" in caught.value.what
    assert "with ddp" in caught.value.expected and "scaleproof run" in caught.value.fix


def test_learning_is_compared_with_ddp_and_with_no_communication() -> None:
    plan = normalise(learning(CASE, "ddp"), KNOWN)
    assert [a.case.strategy for a in plan.arms] == ["ddp", "diloco", "ddp"]
    assert [a.role for a in plan.arms] == [Role.BASELINE, Role.SUBJECT, Role.ABLATION]
    assert not plan.arms[2].case.communicate
    assert plan.arms[0].case.knobs == {}, "the baseline must not have the knobs of another strategy"
    assert any(metric(c.metric).of_loss for c in plan.contrasts)
    assert plan.window.steps == plan.protocol.steps == plan.pilot.steps


def test_the_name_of_such_a_case_plans_a_learning_run() -> None:
    assert case_plan("local_sgd/decoder-nano", SITE, KNOWN, {}).to_loss is not None


def test_compared_cases_are_ratios_to_the_first() -> None:
    cases = {n: SITE.case(f"{n}/mlp-nano") for n in ("ddp", "fsdp", "zero1")}
    plan = beside("three", cases, ("step_s", "throughput_ratio"))
    assert [c.name for c in plan.contrasts] == [
        "step_s@ddp", "step_s@fsdp", "step_s@zero1", "throughput_ratio@fsdp",
        "throughput_ratio@zero1",
    ]  # fmt: skip
    assert {c.baseline for c in plan.contrasts} == {(), ("ddp",)}
