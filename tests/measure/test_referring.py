"""References of models that are too large for one device cover only the first steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.analysis.judging import blockers
from harness.analysis.samples import references
from harness.analysis.samples.references import LEAST_LIMIT, MOST_LIMIT, LossCurve
from harness.cases import CaseSpec, Catalogue, Device, Protocol, Settings, Site
from harness.cases.recipes import ladder
from harness.cases.targets import normalise
from harness.interface.cli.main import main
from harness.measure import orders, together
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Described, Purpose, RunRecord, Status
from harness.record.store import load, load_samples


@pytest.mark.full
def test_a_model_too_large_for_one_device_is_compared_in_its_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(described: Described, case: CaseSpec, machine: object) -> bool:
        return case.world_size > 1

    for module in (blockers, orders, together):
        monkeypatch.setattr(module, "too_large_for_one", too_large)
    known = Catalogue()
    case = Site(device=Device.CPU, backend="gloo", nodes=(2,)).case("fsdp/mlp-nano")
    quick = Protocol(steps=6, cut=2, min_blocks=1, max_blocks=1)
    plan = normalise(ladder(case, (2,), baselines=("plain",), protocol=quick), known)
    with Session(
        known, Settings(timeline=False, fabric=False), tmp_path, (), Progress()
    ) as session:
        measurer = Measurer(session)
        measurer.measure([plan])
        (verdict,) = measurer.verdicts(plan)
    run = session.run
    (streamed,) = [x for x in run.launches if x.purpose is Purpose.REFERENCE and x.arm == "@2"]
    assert len(streamed.ranks) == 1, "one rank takes both shards in turn"
    assert {x.compared for x in run.launches if x.purpose is Purpose.TIMED and x.arm == "@2"} == {2}
    assert any("does not fit on one device: the losses of the first 2" in n for n in run.notes)
    assert verdict.status is Status.RECORDED, verdict.detail


@pytest.mark.parametrize(("limit", "replicates", "known"), [(0.0, 0, 16), (2e-2, 3, 0)])
def test_a_case_that_needs_replicates_gets_a_new_reference(
    sample_run: RunRecord,
    monkeypatch: pytest.MonkeyPatch,
    limit: float,
    replicates: int,
    known: int,
) -> None:
    """A reference of a bit-identical case has no replicates, so others must train it again."""
    launch = next(x for x in sample_run.launches if x.purpose is Purpose.REFERENCE)
    curve = references.LossCurve(losses=np.zeros(16), limit=limit)
    monkeypatch.setattr(references, "launch_of", lambda *of: launch)
    monkeypatch.setattr(references, "curve", lambda *of: curve)
    arm = sample_run.plans[0].arm("@2")
    run = SimpleNamespace(launches=[launch], described={}, folder=Path())
    assert orders._known(run, arm, replicates) == known  # type: ignore[arg-type]


@pytest.mark.parametrize(("streamed", "launches"), [(False, 1), (True, 2)])
def test_streamed_references_are_trained_one_at_a_time(
    sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch, streamed: bool, launches: int
) -> None:
    """Only references with separate devices are trained concurrently."""
    plan = sample_run.plans[0]
    wanted = [orders.Wanted(arm, 4, streamed, 0) for arm in plan.arms[:2]]
    monkeypatch.setattr(orders, "_wanted_references", lambda *of: wanted)
    monkeypatch.setattr(
        orders.together, "groups", lambda session, plan, arms: [arms] if arms else []
    )
    session = SimpleNamespace(run=sample_run)
    asked = [arms for arms, _ in orders.missing_references(session, plan, plan.arms)]  # type: ignore[arg-type]
    assert len(asked) == launches and sum(map(len, asked)) == 2
    assert [arm for arms in asked for arm in arms] == list(plan.arms[:2])


def test_without_replicates_only_reordered_sums_are_accepted() -> None:
    """In 16 bits, a difference of 2 % is allowed only if replicates can no longer be trained."""
    losses = np.linspace(4.0, 3.0, 12)
    for provisional, limit in ((True, LEAST_LIMIT), (False, MOST_LIMIT)):
        curve = LossCurve(losses=losses, limit=2e-2, provisional=provisional)
        assert curve.limits(12) == pytest.approx(np.full(12, limit))
    replicated = LossCurve(losses=losses, limit=2e-2, replicates=np.stack([losses * 1.0001]))
    assert replicated.limits(12).max() == pytest.approx(1e-3, rel=0.01)


@pytest.mark.full
def test_replicates_are_trained_for_the_launches_that_need_them(tmp_path: Path) -> None:
    """Four ranks add in another order in 16 bits, with an error of 1e-4; one and two are exact."""
    words = ["run", "ddp/decoder-nano/weak", "--cpus", "4", "--set", "precision=autocast"]
    words += ["--set", "micro_batch=32", "--no-timeline", "--no-fabric"]
    assert main([*words, "--results", str(tmp_path)]) in (0, 5)
    (folder,) = tmp_path.glob("runs/*/*")
    run = load(folder)
    ranks = {arm.case.hash: arm.case.world_size for arm in run.plans[0].arms}
    replicated = [
        ranks[x.case] for x in run.launches
        if x.purpose is Purpose.REFERENCE
        and load_samples(folder, x.launch, x.ranks[0]).replicates is not None
    ]  # fmt: skip
    assert replicated == [4]
    assert not any(launch.wrong for launch in run.launches)
    assert main(["verify", str(folder)]) == 0
