"""Ablations on real ranks are timed in the blocks of the world size that they explain, and never
checked for correctness.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.cases import Ablation, Catalogue, Device, Plan, Protocol, Settings, Site
from harness.cases.recipes import ladder
from harness.cases.targets import normalise
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Purpose, Reason, Status

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
FAST = Protocol(steps=6, cut=2, min_blocks=2, max_blocks=2)


def plan_of(catalogue: Catalogue, name: str, *ablations: Ablation, data: str = "resident") -> Plan:
    case = replace(SITE.case(name), data=data)
    plan = ladder(case, (2,), baselines=("plain",), protocol=FAST, ablations=ablations)
    return normalise(plan, catalogue)


@pytest.mark.full
def test_the_cost_of_an_ablation_is_recorded_and_its_arm_is_not_checked(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    session = Session(catalogue, Settings(timeline=False), tmp_path, (), Progress())
    measurer = Measurer(session)
    both = (Ablation.COMMUNICATION, Ablation.DATA)
    plans = [
        plan_of(catalogue, "ddp/mlp-nano", *both, data="loaded"),
        plan_of(catalogue, "fsdp/mlp-nano", Ablation.COMMUNICATION),
        plan_of(catalogue, "pipeline/decoder-nano", Ablation.COMMUNICATION),
    ]
    try:
        measurer.measure(plans)
        ddp, fsdp, pipeline = ({v.contrast: v for v in measurer.verdicts(p)} for p in plans)
    finally:
        session.close()
    for expected in (ddp, fsdp):
        cost = expected["communication_cost@2"]
        assert cost.status is Status.RECORDED and cost.n == 4 and cost.value is not None
        assert cost.value < 1, "a share of the step"
        assert expected["efficiency@2/plain"].value is not None
    assert ddp["data_cost@2"].status is Status.RECORDED
    skipped = pipeline["communication_cost@2"]
    assert (skipped.status, skipped.reason) == (Status.SKIP, Reason.UNSUPPORTED)
    assert "cannot run without communication" in skipped.detail
    assert pipeline["efficiency@2/plain"].value is not None
    apart = [x for x in measurer.run.launches if x.arm.startswith("@2-")]
    assert {x.purpose for x in apart} == {Purpose.PILOT, Purpose.TIMED}
    silent = [x for x in apart if x.arm == "@2-communication"]
    assert {r.backend for x in silent for r in x.ranks} == {"fake"}
    assert {r.sent_bytes for x in silent for r in x.ranks} == {None}, "there was nothing to count"


def test_resident_data_cannot_be_ablated(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError, match="nothing to ablate") as error:
        plan_of(catalogue, "ddp/mlp-nano", Ablation.DATA)
    assert "--set data=loaded" in str(error.value)
