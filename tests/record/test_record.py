"""The record: written whole, read strictly, recomputed from its samples, tamper-evident."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest

from harness.analysis.judging import pairs as paired
from harness.analysis.judging.notices import findings
from harness.analysis.judging.points import points
from harness.analysis.judging.verdicts import verdicts
from harness.analysis.samples import figures
from harness.analysis.samples.references import LossCurve, astray
from harness.analysis.verify import verify
from harness.base import packs
from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError
from harness.cases import Contrast, Device, Mode, Plan
from harness.host.nvml import GpuWindow
from harness.interface import frames
from harness.measure.blocks import missing
from harness.measure.resume import unfinished
from harness.record import SCHEMA, SETTLED_SINCE, Purpose, Reason, RunRecord, Status, store
from harness.record.schema import RECORD, record_schema
from harness.record.store import Samples, load, save
from harness.record.upgrade import upgrade
from tests.editing import confirm, even, judged, timed


@pytest.fixture
def copy(sample: Path, tmp_path: Path) -> Path:
    page = shutil.ignore_patterns("*report.html*")  # another test may be writing one
    return Path(shutil.copytree(sample, tmp_path / "run", ignore=page))


def change(folder: Path, edit: Any) -> None:
    """Edit record.json and its digest, as a careful forger would."""
    doc = json.loads((folder / "record.json").read_text())
    edit(doc)
    text = json.dumps(doc)
    (folder / "record.json").write_text(text)
    (folder / "record.sha256").write_text(hashlib.sha256(text.encode()).hexdigest())


def test_shipped_schema_is_the_one_of_the_code() -> None:
    assert json.loads(RECORD.read_text()) == record_schema(), "python -m harness.record.schema"


def test_sample_records_match_the_schema(sample: Path) -> None:
    for folder in (sample, sample.with_name("ddp-nano-again")):
        old = json.loads((folder / "record.json").read_text())
        jsonschema.validate(upgrade(old, SCHEMA), record_schema())


def test_load_is_the_inverse_of_save(sample_run: RunRecord, tmp_path: Path) -> None:
    save(sample_run, tmp_path)
    assert load(tmp_path) == sample_run
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"], "the digest is in it"


def test_verify_reproduces_every_sample_and_verdict(sample: Path, sample_run: RunRecord) -> None:
    found = verify(sample_run, sample)
    assert found.differences == ()
    assert (found.num_launches, found.num_samples, found.num_verdicts) == (19, 25, 3)
    assert found.num_traceless == 3, "the samples are kept without their traces"


def test_an_edited_record_is_refused(copy: Path) -> None:
    text = (copy / "record.json").read_text()
    (copy / "record.json").write_text(re.sub(r'"consumed": [1-9]', '"consumed": 9', text, count=1))
    with pytest.raises(RecordError, match="changed after it was written"):
        load(copy)


def test_a_forged_value_is_found(copy: Path) -> None:
    def faster(doc: Any) -> None:
        launch = next(x for x in doc["launches"] if x["purpose"] == "timed")
        launch["ranks"][0]["window_s"] *= 0.9

    change(copy, faster)
    assert any("window of rank 0" in d for d in verify(load(copy), copy).differences)


def test_a_forged_verdict_is_found(copy: Path) -> None:
    change(copy, lambda doc: doc["verdicts"][0].update(value=0.999))
    assert len(verify(load(copy), copy).differences) == 1


@pytest.mark.parametrize(("schema", "wrong"), [(6, 0), (8, 1)])
def test_what_load_left_open_by_the_rules_of_its_day_is_no_forgery(
    copy: Path, schema: int, wrong: int
) -> None:
    """Today it passes, since load can only have made it harder. A PASS that was none is found."""

    run = load(copy)
    place, old = next((i, v) for i, v in enumerate(run.verdicts) if v.status is Status.PASS)

    def open_(doc: Any) -> None:
        doc["verdicts"][place].update(status="INCONCLUSIVE", reason="noisy_host", evidence=None)

    change(copy, open_)
    recorded = dataclasses.replace(load(copy), schema=schema)
    found = [d for d in verify(recorded, copy).differences if old.contrast in d]
    assert len(found) == wrong, found


def test_edited_samples_are_found(copy: Path) -> None:
    path = next(copy.glob("launches/*-t*/rank0.npz"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (difference,) = verify(load(copy), copy).differences
    assert "samples were changed" in difference and path.parent.name in difference


def test_missing_samples_are_found(copy: Path) -> None:
    next(copy.glob("launches/*-t*/rank0.npz")).unlink()
    (difference,) = verify(load(copy), copy).differences
    assert "samples are missing" in difference


def test_newer_records_are_refused_and_nonsense_is_named(copy: Path) -> None:
    change(copy, lambda doc: doc.update(schema=SCHEMA + 1))
    with pytest.raises(RecordError, match="newer than this program"):
        load(copy)
    with pytest.raises(ValueError, match="no schema number"):
        upgrade({"hello": 1}, SCHEMA)
    change(copy, lambda doc: doc.update(schema=5, surprise=1))
    with pytest.raises(RecordError, match="unknown field 'surprise'"):
        load(copy)


def test_an_older_record_is_read_and_its_verdicts_left_as_they_were() -> None:
    """One golden record per older schema."""
    folder = Path(__file__).parents[1] / "golden" / "record-v1"
    run = load(folder)
    assert run.schema == 1 and run.windows == {} and run.admission == ()
    found = verify(run, folder)
    assert found.differences == () and found.num_launches == 24 and found.num_verdicts == 0
    assert {v.status for v in run.verdicts} == {Status.PASS, Status.RECORDED}
    assert {v.status for v in verdicts(run)} == {Status.PASS, Status.RECORDED}, "and judged anew"


def test_verdicts_of_sweeps_and_trials_of_schema_4_are_judged_alike() -> None:
    """8 sweeps, 16 sweeps that fail twice, 8 trials: as the program of its day wrote them."""
    folder = Path(__file__).parents[1] / "golden" / "record-v4"
    run = load(folder)
    found = verify(run, folder)
    assert found.differences == () and found.num_verdicts == 0, "judged by the rules of its day"
    assert [v.status for v in verdicts(run)] == [Status.PASS, Status.FAIL, Status.PASS]


def test_a_record_of_schema_6_keeps_its_windows(sample: Path) -> None:
    """Pilots were read otherwise then: what they settled is taken as recorded."""
    run = load(sample)
    assert run.schema == 6 and any(w.cut > 30 for ws in run.windows.values() for w in ws.values())
    assert verify(run, sample).differences == ()


@pytest.mark.parametrize(
    "broken",
    [
        {"settings": None},
        {"fabric": [{}]},
        {"settings": {"budget_s": "5 m"}},
        {"recoveries": [7]},
    ],
)
def test_a_broken_older_record_is_one_clear_error(copy: Path, broken: dict[str, Any]) -> None:
    change(copy, lambda doc: doc.update(schema=4, **broken))
    with pytest.raises(RecordError):
        load(copy)


def test_a_missing_rank_is_found(copy: Path) -> None:
    def lose(doc: Any) -> None:
        launch = next(x for x in doc["launches"] if x["purpose"] == "timed" and x["arm"] == "@2")
        del launch["ranks"][1]

    change(copy, lose)
    differences = verify(load(copy), copy).differences
    assert any("wrong is ()" in d and "ranks [0] joined" in d for d in differences)


def test_truncated_samples_are_found(copy: Path) -> None:
    path = next(copy.glob("launches/*-t*/rank0.npz"))
    path.write_bytes(path.read_bytes()[:100])
    (difference,) = verify(load(copy), copy).differences
    assert "samples were changed" in difference


def test_a_forged_window_is_found(copy: Path) -> None:
    def longer(doc: Any) -> None:
        (windows,) = doc["windows"].values()
        windows["plain"]["steps"] = 99
        doc["schema"] = SETTLED_SINCE

    change(copy, longer)
    assert any("the pilots give others" in d for d in verify(load(copy), copy).differences)


def test_no_record_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record.json here"):
        load(tmp_path)


def test_a_failed_check_is_an_error_whatever_the_speed(sample_run: RunRecord) -> None:
    def wrong(doc: Any) -> None:
        gate = next(x for x in doc["launches"] if x["purpose"] == "gate" and x["arm"] == "@2")
        gate["ranks"][1]["checks"][3]["ok"] = False

    found = judged(sample_run, wrong)
    assert (found["efficiency@2/plain"].status, found["efficiency@2/plain"].reason) == (
        Status.ERROR,
        Reason.INCORRECT,
    )
    assert found["efficiency@1/plain"].status is Status.RECORDED, "the other rung is untouched"


def test_a_gate_that_checked_nothing_is_an_error(sample_run: RunRecord) -> None:
    def empty(doc: Any) -> None:
        for x in doc["launches"]:
            if x["purpose"] == "gate":
                for r in x["ranks"]:
                    r["checks"] = []

    assert {v.status for v in judged(sample_run, empty).values()} == {Status.ERROR}


def test_without_a_gate_nothing_passes(sample_run: RunRecord) -> None:
    def drop(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] == "timed"]

    found = judged(sample_run, drop)
    assert {(v.status, v.reason) for v in found.values()} == {(Status.ERROR, Reason.NOT_MEASURED)}


def test_a_launch_that_ran_something_else_is_an_error(sample_run: RunRecord) -> None:
    found = judged(sample_run, lambda doc: timed(doc, "@2")[3].update(wrong=["world: 1 rank"]))
    assert found["efficiency@2/plain"].reason is Reason.WRONG_WORLD


def test_a_failed_launch_is_an_error_and_not_a_dropped_pair(sample_run: RunRecord) -> None:
    found = judged(sample_run, lambda doc: timed(doc, "@2")[0].update(status="failed"))
    assert found["efficiency@2/plain"].reason is Reason.LAUNCH_FAILED


def test_nothing_measured_is_never_green(sample_run: RunRecord) -> None:
    def drop(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] == "gate"]

    found = judged(sample_run, drop)
    assert {v.status for v in found.values()} == {Status.ERROR}


def test_impossible_efficiency_is_implausible(sample_run: RunRecord) -> None:
    def twice(doc: Any) -> None:
        for x in timed(doc, "@2"):
            for r in x["ranks"]:
                r["window_s"] /= 3

    found = judged(sample_run, twice)["efficiency@2/plain"]
    assert (found.status, found.reason) == (Status.ERROR, Reason.IMPLAUSIBLE)


def test_two_cases_side_by_side_scale_nothing(sample_run: RunRecord) -> None:
    """A codec on a slow link, or a pinned environment beside a newer one, may be twice as fast."""

    def twice(doc: Any) -> None:
        even(doc, 2.0)
        (plan,) = doc["plans"]
        plan["contrasts"] = [{**c, "metric": "throughput_ratio"} for c in plan["contrasts"]]
        renamed = from_doc(Plan, plan).hash
        for entry in (*doc["launches"], *doc["blocks"]):
            entry["plan"] = renamed
        (doc["windows"][renamed],) = list(doc["windows"].values())

    found = judged(sample_run, twice)["efficiency@2/plain"]
    assert found.value == pytest.approx(2.0, rel=0.02) and found.status is Status.RECORDED


@pytest.mark.parametrize("placed", ["Replicate", "Shard(dim=0)"])
def test_a_sharded_optimizer_may_beat_linear_scaling(sample_run: RunRecord, placed: str) -> None:
    """Each of two ranks does half of AdamW: where that is half of a step, 1.25 is no mistake."""

    def better(doc: Any) -> None:
        even(doc, 1.25)
        for d in doc["described"].values():
            d["expected"]["placements"] = [placed]
            d["facts"]["num_params"] = 10**9
        for x in doc["launches"]:
            for r in x["ranks"]:
                r["ran"]["placements"] = [placed]

    found = judged(sample_run, better)["efficiency@2/plain"]
    sharded = placed != "Replicate"
    assert (found.reason is Reason.IMPLAUSIBLE) is not sharded


def test_too_large_for_memory_is_a_skip(sample_run: RunRecord) -> None:
    def huge(doc: Any) -> None:
        for d in doc["described"].values():
            d["expected"]["memory_bytes"] = 10**15

    assert {v.reason for v in judged(sample_run, huge).values()} == {Reason.DOES_NOT_FIT}


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


def test_a_planted_leak_is_noticed(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    assert not any("memory grows" in f for f in findings(sample_run))
    for x in timed(doc, "@2"):
        x["growth"] = {"rank": 1, "steady": 0.9, "slope": 2e5, "low": 1.5e5, "high": 2.5e5}
    (finding,) = [f for f in findings(from_doc(RunRecord, doc)) if "memory grows" in f]
    assert "200 kB a step" in finding

    def bounded(doc: Any) -> None:
        for x in timed(doc, "@2"):
            x["growth"] = {"rank": 1, "steady": 0.9, "slope": 2e5, "low": 1.5e5, "high": 2.5e5}
        doc["thresholds"].append(
            {"name": "leak", "case": "ddp/*", "metric": "memory_growth", "unit": "B/step",
             "source": "requirement", "world": [2], "at_most": 65536}
        )  # fmt: skip

    leaks = judged(sample_run, bounded)["memory_growth@2"]
    assert leaks.status in (Status.FAIL, Status.INCONCLUSIVE) and leaks.value == 2e5


def test_different_losses_are_noticed(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    timed(doc, "@2")[0]["losses"] = "0" * 16
    assert any("not reproducible" in f for f in findings(from_doc(RunRecord, doc)))


def make(ids: list[list[int]], loss: float = 1.0) -> Samples:
    n = len(ids)
    return Samples(
        marks_s=np.arange(n + 1.0), loss=np.full(n, loss), sample_ids=np.array(ids),
        rss_bytes=np.zeros(n), step_s=np.ones(n),
    )  # fmt: skip


def test_samples_are_counted_as_consumed_not_as_asked() -> None:
    disjoint = [make([[0, 1], [4, 5]]), make([[2, 3], [6, 7]])]
    same = [make([[0, 1], [4, 5]]), make([[0, 1], [4, 5]])]
    assert figures.consumed(disjoint, 0) == 8
    assert figures.consumed(same, 0) == 4
    assert figures.consumed(disjoint, 1) == 4


def test_what_did_not_run_as_asked_is_listed(sample_run: RunRecord) -> None:
    plan = sample_run.plans[0]
    case = plan.arm("@2").case
    expected = sample_run.described[case.hash].expected
    assert expected is not None
    launch = next(x for x in sample_run.launches if x.arm == "@2" and x.steps)
    good = [make([[i * 16 + r * 8 + j for j in range(8)] for i in range(4)]) for r in range(2)]

    def wrong(ranks: Any, samples: Any = good) -> str:
        return " | ".join(figures.wrong(case, expected, ranks, samples, 1))

    ranks = [
        dataclasses.replace(
            r, sent_bytes=int(expected.sent_bytes[0] * 3), written_bytes=None, kernel_s=None
        )
        for r in launch.ranks
    ]
    assert wrong(ranks) == ""
    assert "ranks [0] joined" in wrong(ranks[:1])
    assert "backend mpi" in wrong([dataclasses.replace(r, backend="mpi") for r in ranks])
    assert "ran on NVIDIA" in wrong([dataclasses.replace(r, device="NVIDIA H200") for r in ranks])
    assert "two ranks in one process" in wrong([dataclasses.replace(r, pid=1) for r in ranks])
    assert "two ranks on one device" in wrong([dataclasses.replace(r, local_rank=0) for r in ranks])
    assert "2 ranks on one device, GPU-7" in wrong(
        [dataclasses.replace(r, device_uuid="GPU-7") for r in ranks]
    )
    assert wrong([dataclasses.replace(r, device_uuid=f"GPU-{r.rank}") for r in ranks]) == ""
    assert "ranks per node {0: 1, 1: 1}" in wrong(
        [dataclasses.replace(r, node=r.rank) for r in ranks]
    )
    module = dataclasses.replace(ranks[0].ran, module="Sequential")
    assert "trained a Sequential" in wrong([dataclasses.replace(r, ran=module) for r in ranks])
    doubled = [dataclasses.replace(r, sent_bytes=2 * (r.sent_bytes or 0)) for r in ranks]
    assert "sent 2.000x of 2 (N-1)/N bytes(P)" in wrong(doubled)
    assert "24 consumed, 48 asked for" in wrong(ranks, [good[0], good[0]])
    late = [dataclasses.replace(r, clock_misses=3, planted_s=1.0, window_s=3.1) for r in ranks]
    assert "slot too short: 3 deadlines of the schedule missed, 3.3% late" in wrong(late)
    caught_up = [dataclasses.replace(r, window_s=3.001) for r in late]
    assert wrong(caught_up) == ""
    assert "loss: not finite" in wrong(ranks, [make(good[0].sample_ids.tolist(), np.inf), good[1]])


def test_frames(sample: Path, sample_run: RunRecord) -> None:
    launches = frames.launches([sample])
    assert len(launches) == 24
    assert set(launches.purpose) == {"gate", "pilot", "reference", "timed", "profile"}
    steps = frames.steps([sample])
    kept = sum(x.steps.count * len(x.ranks) for x in sample_run.launches if x.steps)
    assert steps.kept.sum() == kept and len(steps) >= kept + 25 * 6
    assert list(frames.points([sample]).world_size) == [1, 2, 2]
    assert set(frames.verdicts([sample]).status) == {"PASS", "RECORDED"}
    budgets = frames.budgets([sample])
    whole = budgets.groupby(["launch", "rank", "step"]).ns.sum()
    assert len(whole) == 4 * 8 and sorted(whole) == sorted(
        ns for x in sample_run.launches if x.budget for r in x.budget.ranks for ns in r.step_ns
    )


def test_gradient_norms_of_a_strong_ladder_must_agree(sample_run: RunRecord) -> None:
    def strong(doc: Any, factor: float) -> None:
        """The weak sample as if it were strong, with one rung's norm moved."""
        hashes = {}
        for plan in doc["plans"]:
            for arm in plan["arms"]:
                old = next(a for a in sample_run.plans[0].arms if a.name == arm["name"]).case
                arm["case"].update(mode="strong", global_batch=16)
                new = dataclasses.replace(old, mode=Mode.STRONG, global_batch=16)
                hashes[old.hash] = new.hash
        doc["described"] = {hashes[h]: d for h, d in doc["described"].items()}
        plan_hash = from_doc(Plan, doc["plans"][0]).hash
        for x in doc["launches"]:
            x.update(case=hashes[x["case"]], plan=plan_hash)
            for r in x["ranks"]:
                r["grad_norm"] = 2.0 * (factor if x["arm"] == "@2" else 1.0)

    right = judged(sample_run, lambda doc: strong(doc, 1 + 1e-7))
    wrong_ = judged(sample_run, lambda doc: strong(doc, 1 + 1e-4))
    assert right["efficiency@2/plain"].status is not Status.ERROR
    assert (wrong_["efficiency@2/plain"].status, wrong_["efficiency@2/plain"].reason) == (
        Status.ERROR,
        Reason.INCORRECT,
    )
    assert "gradient norm" in wrong_["efficiency@2/plain"].detail


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


def test_slowed_and_lost_devices_are_noticed(sample_run: RunRecord) -> None:
    window = GpuWindow(
        index=5, name="NVIDIA H200", sm_clock_mhz=(1410, 1980), power_w=None, temp_c=None,
        throttle=("sw_power_cap",), lost=True,
    )  # fmt: skip
    slowed = [dataclasses.replace(x, gpus=(window,)) for x in sample_run.launches[:3]]
    run = dataclasses.replace(sample_run, launches=tuple(slowed))
    assert "GPU 5 (NVIDIA H200): sw_power_cap, lost in 3 launches" in findings(run)


def test_files_that_broke_are_an_error_and_never_a_skip(sample_run: RunRecord) -> None:
    def broke(doc: Any) -> None:
        for d in doc["described"].values():
            d.update(facts=None, expected=None, error="NameError: name 'x' is not defined")

    found = judged(sample_run, broke)
    assert {(v.status, v.reason) for v in found.values()} == {(Status.ERROR, Reason.LAUNCH_FAILED)}


def test_no_number_is_shown_for_what_was_rejected(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    timed(doc, "@2")[3].update(wrong=["world: 1 rank"])
    run = from_doc(RunRecord, doc)
    (plan,) = run.plans
    assert [p.world_size for p in points(run, plan)] == [1]
    rejected = next(v for v in verdicts(run) if v.contrast == "efficiency@2/plain")
    assert (rejected.value, rejected.pairs, rejected.launches) == (None, (), ())


def test_points_against_a_node_count_nodes_not_ranks(sample_run: RunRecord) -> None:
    """The sample's two rungs read as 8 and 16 ranks: speedup 1.7 over two nodes is 0.86 of linear."""
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


def test_a_run_that_was_stopped_is_open_where_nothing_was_measured(sample_run: RunRecord) -> None:
    def stop(doc: Any) -> None:
        doc.update(complete=False, launches=[], described={})

    found = judged(sample_run, stop)
    assert {(v.status, v.reason) for v in found.values()} == {
        (Status.INCONCLUSIVE, Reason.INTERRUPTED)
    }


def test_resume_keeps_everything_and_takes_up_what_only_the_chain_knows(copy: Path) -> None:
    """The program was killed in the third turn, after its record was written for the last time."""
    lines = (copy / "chain.jsonl").read_text().splitlines()
    places = [i for i, line in enumerate(lines) if '"kind":"launch"' in line]
    kept = [i for i in places if '"purpose":"timed"' in lines[i]][6]
    (copy / "chain.jsonl").write_text("".join(f"{x}\n" for x in lines[: kept + 1]) + lines[-1][:40])

    def early(doc: Any) -> None:
        doc.update(complete=False, launches=doc["launches"][:5], blocks=[], windows={})
        doc["schema"] = SCHEMA

    change(copy, early)
    run = unfinished(copy, load(copy).machine)
    assert len(run.launches) == places.index(kept) + 1
    assert len(run.blocks) == 2 and run.windows
    assert sum(x.purpose is Purpose.TIMED for x in run.launches) == 7


def test_an_interrupted_block_is_finished_launch_by_launch(copy: Path) -> None:
    """Whatever was seen before the interrupt counts, so that stopping gains nothing."""
    run = load(copy)
    for seen in range(len(run.launches)):
        half = dataclasses.replace(run, launches=run.launches[:seen])
        held = SimpleNamespace(timed=lambda plan, half=half: paired.timed(half, plan, None))
        (plan,) = run.plans
        slots = [x for b in run.blocks for x in missing(held, plan, b)]  # type: ignore[arg-type]
        again = [(turn, arm.name) for turn, arms in slots for arm in arms]
        before = [(x.turn, x.arm) for x in half.launches if x.purpose is Purpose.TIMED]
        every = [(x.turn, x.arm) for x in run.launches if x.purpose is Purpose.TIMED]
        assert before + again == every


def test_samples_that_are_alike_count_as_often_as_they_were_handed_out() -> None:
    """Two samples of a small language may have the same tokens; half a batch is still half."""
    whole = dataclasses.replace(
        make([[0, 1, 2, 3]]), content=np.array([[7, 7, 8, 9]]), seen=np.array([[7, 8, 9]])
    )
    assert figures.consumed([whole], 0) == 4
    assert figures.consumed([dataclasses.replace(whole, seen=np.array([[7, 0, 0]]))], 0) == 2


@pytest.mark.parametrize(
    ("step", "off", "told"), [(5, 1e-4, True), (60, 1e-4, False), (60, 1e-2, True)]
)
def test_rounding_may_grow_but_a_cheat_does_not_pass_for_it(
    step: int, off: float, told: bool
) -> None:
    losses = np.linspace(3, 2, 80)
    mine = losses.copy()
    mine[step:] *= 1 + off
    curve = LossCurve(losses=losses, limit=2e-5)
    samples = dataclasses.replace(make([[0]] * 80), loss=mine)
    assert bool(astray([samples], curve)) is told
    assert astray([samples], dataclasses.replace(curve, limit=0.0)), "to the bit, where it is exact"


def test_samples_of_many_ranks_are_one_file(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what each rank wrote, to the bit; one that was changed is found."""
    run = load(copy)
    monkeypatch.setattr(packs, "MANY", 0)
    for launch in run.launches:
        if launch.usable and launch.purpose is not Purpose.GATE:
            packs.pack(copy / "launches" / launch.launch, [r.rank for r in launch.ranks])
    packed = sorted(copy.glob("launches/*/ranks.zip"))
    assert packed and not list(copy.glob("launches/*/*.npz"))
    assert not verify(run, copy).differences
    body = bytearray(packed[0].read_bytes())
    body[60] ^= 1
    packed[0].write_bytes(bytes(body))
    assert verify(run, copy).differences
    packed[0].unlink()
    assert any("missing" in told for told in verify(run, copy).differences)


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_read_as_numpy_reads_them(compressed: bool) -> None:
    """The reader of samples is ours, since numpy makes room for whatever a header says."""
    given = {
        "step_s": np.linspace(0, 1, 7),
        "empty": np.zeros((0, 3), np.int32),
        "one": np.float32(2.5),
        "flags": np.array([True, False]),
        "by_columns": np.asfortranarray(np.arange(6, dtype=">i8").reshape(2, 3)),
        "names": np.array(["a", "bcd"]),
    }
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **given)  # type: ignore[arg-type]
    read = store._arrays(file.getvalue())
    with np.load(io.BytesIO(file.getvalue())) as theirs:
        assert read.keys() == set(theirs.files)
        for name, array in read.items():
            assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape
            assert np.array_equal(array, theirs[name]) and array.flags.writeable
    objects = io.BytesIO()
    np.savez(objects, odd=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="objects are no samples"):
        store._arrays(objects.getvalue())
