"""Verdicts beyond the interval: implausible values, waivers, and rejected launches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.analysis.judging.points import points
from harness.analysis.judging.verdicts import verdicts
from harness.base.documents import from_doc, to_doc
from harness.cases import Device, Plan
from harness.record import Reason, RunRecord, Status
from tests.editing import confirm, even, judged, timed


def test_an_impossible_efficiency_is_an_error(sample_run: RunRecord) -> None:
    def twice(doc: Any) -> None:
        for x in timed(doc, "@2"):
            for r in x["ranks"]:
                r["window_s"] /= 3

    verdict = judged(sample_run, twice)["efficiency@2/plain"]
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.IMPLAUSIBLE)


def test_a_ratio_of_two_cases_may_exceed_linear_scaling(sample_run: RunRecord) -> None:
    """A compressor on a slow link, or a newer environment, may be twice as fast."""

    def twice(doc: Any) -> None:
        even(doc, 2.0)
        (plan,) = doc["plans"]
        plan["contrasts"] = [{**c, "metric": "throughput_ratio"} for c in plan["contrasts"]]
        renamed = from_doc(Plan, plan).hash
        for entry in (*doc["launches"], *doc["blocks"]):
            entry["plan"] = renamed
        (doc["windows"][renamed],) = list(doc["windows"].values())

    verdict = judged(sample_run, twice)["efficiency@2/plain"]
    assert verdict.value == pytest.approx(2.0, rel=0.02) and verdict.status is Status.RECORDED


@pytest.mark.parametrize("placed", ["Replicate", "Shard(dim=0)"])
def test_a_sharded_optimizer_may_beat_linear_scaling(sample_run: RunRecord, placed: str) -> None:
    """Each of two ranks does half of AdamW; if AdamW is half of a step, an efficiency of 1.25 is
    plausible.
    """

    def better(doc: Any) -> None:
        even(doc, 1.25)
        for d in doc["described"].values():
            d["expected"]["placements"] = [placed]
            d["facts"]["num_params"] = 10**9
        for x in doc["launches"]:
            for r in x["ranks"]:
                r["ran"]["placements"] = [placed]

    verdict = judged(sample_run, better)["efficiency@2/plain"]
    sharded = placed != "Replicate"
    assert (verdict.reason is Reason.IMPLAUSIBLE) is not sharded


def test_a_waived_failure_stays_fail_but_does_not_count(sample_run: RunRecord) -> None:
    def waive(doc: Any, bound: float) -> None:
        rule = next(t for t in doc["thresholds"] if t["name"] == "cpu_ddp_weak")
        rule["at_least"] = bound
        rule["waiver"] = {"reason": "old switch", "expires": "2999-01-01"}
        confirm(doc)

    failed = judged(sample_run, lambda doc: waive(doc, 1.5))["efficiency@2/plain"]
    assert (failed.status, failed.counts, failed.waived) == (Status.FAIL, Status.RECORDED, True)
    passed = judged(sample_run, lambda doc: waive(doc, 0.2))["efficiency@2/plain"]
    assert (passed.status, passed.reason) == (Status.FAIL, Reason.UNEXPECTED_PASS)


def test_more_than_the_devices_peak_is_implausible(sample_run: RunRecord) -> None:
    def gpu(doc: Any, flops: float) -> None:
        doc["machine"].update(gpu="NVIDIA H200", num_gpus=2, gpu_memory_gib=140)
        hashes = {}
        for arm in doc["plans"][0]["arms"]:
            old = next(a for a in sample_run.plans[0].arms if a.name == arm["name"]).case
            arm["case"]["device"] = "cuda"
            hashes[old.hash] = dataclasses.replace(old, device=Device.CUDA).hash
        doc["described"] = {hashes[h]: d for h, d in doc["described"].items()}
        for d in doc["described"].values():
            d["facts"]["flops_per_sample"] = flops
        plan_hash = from_doc(Plan, doc["plans"][0]).hash
        for x in doc["launches"]:
            x.update(case=hashes[x["case"]], plan=plan_hash)

    possible = judged(sample_run, lambda doc: gpu(doc, 1e10))["efficiency@2/plain"]
    impossible = judged(sample_run, lambda doc: gpu(doc, 1e12))["efficiency@2/plain"]
    assert possible.status is not Status.ERROR
    assert (impossible.status, impossible.reason) == (Status.ERROR, Reason.IMPLAUSIBLE)
    assert "peak FLOP/s" in impossible.detail


def test_a_rejected_launch_has_no_number(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    timed(doc, "@2")[3].update(wrong=["world: 1 rank"])
    run = from_doc(RunRecord, doc)
    (plan,) = run.plans
    assert [p.world_size for p in points(run, plan)] == [1]
    rejected = next(v for v in verdicts(run) if v.contrast == "efficiency@2/plain")
    assert (rejected.value, rejected.pairs, rejected.launches) == (None, (), ())
