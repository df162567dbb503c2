"""False passes that were found in other benchmark suites and that must not be possible here.

Each test names the mechanism and the suite in which it was found. Rules on bandwidth for sizes that
latency dominates are in ``tests/record/test_fabric.py``, renamed kernels in
``tests/analysis/timeline``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging.blockers import gate_failure
from harness.analysis.judging.caveats import claimed
from harness.analysis.judging.contrast_data import ContrastData
from harness.analysis.judging.verdicts import verdicts
from harness.analysis.samples import figures
from harness.analysis.verify import verify
from harness.base.documents import from_doc, to_doc
from harness.base.errors import ConfigError, Exit
from harness.cases import Arm, Contrast, Plan, Role, metrics
from harness.cases.rules import load_thresholds
from harness.cases.site import rungs
from harness.interface.report import tables
from harness.record import Check, Purpose, Reason, RunRecord, Status
from harness.record.outcome import exit_status
from tests.editing import bound, even, judged, timed

SUBJECT = "efficiency@2/plain"


def test_a_later_pass_does_not_overwrite_an_earlier_warning() -> None:
    """AWS health check: its PASS file overwrote the WARN."""
    for worse in (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE):
        assert exit_status([worse, Status.PASS, Status.PASS]) is not Exit.PASSED


def test_one_good_pair_does_not_decide_for_all_pairs(sample_run: RunRecord) -> None:
    """GCP scanner: the result of the last pair decided for the whole cluster."""

    def last_is_good(doc: Any) -> None:
        even(doc, 0.3)
        for r in timed(doc, "@2")[-1]["ranks"]:
            r["window_s"] /= 2

    assert judged(sample_run, last_is_good)[SUBJECT].status is not Status.PASS


def test_a_failed_check_without_a_limit_is_told(sample_run: RunRecord) -> None:
    """Such a check once ended the program, so nothing else of the run was judged."""
    check = Check(name="full_size.equal_norms", ok=False, value=1.5)
    gate = next(x for x in sample_run.launches if x.purpose is Purpose.GATE)
    ranks = [dataclasses.replace(r, checks=(*r.checks, check)) for r in gate.ranks]
    wrong = dataclasses.replace(gate, ranks=tuple(ranks))
    assert gate_failure(wrong) == "full_size.equal_norms on rank 0: 1.5"


def test_a_codec_that_leaves_gradients_out_passes_nothing(sample_run: RunRecord) -> None:
    """The reference uses the compressor, too, so its losses equal those of the launches."""
    check = Check(
        name="codec.shares", ok=False, value=0.0, limit=0.25, at_least=True, detail="of rank 1"
    )

    def selective(doc: Any) -> None:
        even(doc, 0.99)
        for launch in doc["launches"]:
            if launch["purpose"] == "reference":
                launch["ranks"][0]["checks"] = [to_doc(check)]

    verdict = judged(sample_run, selective)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.INCORRECT)
    assert "codec.shares on rank 0: 0, at least 0.25 (of rank 1)" in verdict.detail


def test_nothing_launched_is_not_success() -> None:
    """pytorch/benchmark: a scheduler that returned an empty list counted as a success."""
    assert exit_status([]) is Exit.NOTHING_JUDGED


def test_without_rules_nothing_passes(sample_run: RunRecord) -> None:
    """ReFrame: a check without a reference value passes."""
    found = judged(sample_run, lambda doc: doc.update(thresholds=[]))
    assert {v.status for v in found.values()} == {Status.RECORDED}
    assert exit_status([v.status for v in found.values()]) is Exit.NOTHING_JUDGED


def test_a_rule_that_matches_no_case_is_reported(sample_run: RunRecord) -> None:
    """cvs: the run passed if no cell matched."""
    doc = to_doc(sample_run)
    bound(doc, case="ddp/resnet-*")
    lines = " ".join(tables.coverage(from_doc(RunRecord, doc)))
    assert "no case: " in lines and "cpu_ddp_weak" in lines


def test_units_cannot_be_mixed(tmp_path: Path) -> None:
    """cvs: values in TFLOP/s were compared with values in tokens/s."""
    path = tmp_path / "thresholds.toml"
    path.write_text(
        "[[rule]]\nname='a'\ncase='*'\nmetric='throughput'\nunit='TFLOP/s'\nat_least=1.0\n"
        "source='requirement'\n"
    )
    with pytest.raises(ConfigError, match="is in 'samples/s', not 'TFLOP/s'"):
        load_thresholds(path)


def test_a_run_that_measured_no_steps_is_an_error(sample_run: RunRecord) -> None:
    """DeepSpeed's CPU branch measured nothing and exited with 0."""

    def gates_only(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] != "timed"]

    found = judged(sample_run, gates_only)
    assert {(v.status, v.reason) for v in found.values()} == {(Status.ERROR, Reason.NOT_MEASURED)}


def test_a_figure_from_the_wrong_column_is_found(sample: Path, sample_run: RunRecord) -> None:
    """cloudai graded the wrong column after the tool had added one; here verify recomputes all
    figures.
    """
    launch = next(x for x in sample_run.launches if x.steps)
    assert launch.steps is not None
    wrong = dataclasses.replace(launch.steps, mean_s=launch.steps.p95_s)
    run = dataclasses.replace(
        sample_run,
        launches=tuple(
            dataclasses.replace(x, steps=wrong) if x is launch else x for x in sample_run.launches
        ),
    )
    assert any("steps is" in d for d in verify(run, sample).differences)


def test_throughput_is_that_of_the_world_not_of_a_rank(sample_run: RunRecord) -> None:
    """SuperBench reported the rate of one rank as throughput; optimum-benchmark ignored the world
    size.
    """
    plan = sample_run.plans[0]
    case = plan.arm("@2").case
    expected = sample_run.described[case.hash].expected
    assert expected is not None
    launch = next(x for x in sample_run.launches if x.arm == "@2" and x.steps)
    assert launch.steps is not None
    assert launch.consumed == launch.steps.count * expected.global_batch
    assert expected.global_batch == 2 * 8


def test_world_sizes_need_not_be_powers_of_two() -> None:
    """Primus skipped such sizes, which left a third of the nodes untested."""
    assert rungs(6) == (1, 2, 4, 6) and rungs(12) == (1, 2, 4, 8, 12) and rungs(1) == (1,)


def test_one_good_set_of_launches_among_bad_ones_does_not_pass(sample_run: RunRecord) -> None:
    """Azure: retries passed if one of N attempts succeeded."""

    def retried(doc: Any) -> None:
        even(doc, 0.3)
        more = []
        for x in doc["launches"]:
            if x["purpose"] == "timed":
                fast = [{**r, "window_s": 1.0} for r in x["ranks"]]
                more.append({**x, "launch": x["launch"] + "-again", "attempt": 1, "ranks": fast})
        doc["launches"] += more

    verdict = judged(sample_run, retried)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.DISAGREE)


def test_superlinear_scaling_does_not_pass(sample_run: RunRecord) -> None:
    """Primus and nanoGPT printed an MFU above 100 %, computed from a wrong peak, without a warning."""
    verdict = judged(sample_run, lambda doc: even(doc, 1.3))[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.IMPLAUSIBLE)


def test_the_window_of_the_slowest_rank_counts(sample_run: RunRecord) -> None:
    """SuperBench and bigscience stopped the clock before the other ranks had finished."""

    def one_late(doc: Any) -> None:
        even(doc, 0.9)
        for x in timed(doc, "@2"):
            x["ranks"][1]["window_s"] *= 2

    verdict = judged(sample_run, one_late)[SUBJECT]
    assert verdict.value == pytest.approx(0.45, rel=0.01)


def test_a_missing_figure_does_not_pass(sample_run: RunRecord) -> None:
    """HTA: a renamed kernel turned the overlap into NaN."""

    def unknown(doc: Any) -> None:
        bound(doc, metric="sent_bytes", unit="B", baseline=None, at_least=None, at_most=1e12)
        for x in timed(doc, "@2"):
            x["ranks"][0]["sent_bytes"] = None

    verdict = judged(sample_run, unknown)["sent_bytes@2"]
    assert verdict.value is None and verdict.status is Status.ERROR


def test_ranks_that_did_not_join_one_group_are_an_error(sample_run: RunRecord) -> None:
    """nccl-tests reported N worlds of one rank as one world of N ranks."""
    case = sample_run.plans[0].arm("@2").case
    expected = sample_run.described[case.hash].expected
    assert expected is not None
    launch = next(x for x in sample_run.launches if x.arm == "@2" and x.steps)
    alone = [dataclasses.replace(r, rank=0) for r in launch.ranks]
    (wrong,) = figures.wrong(case, expected, alone, [], 1)
    assert "ranks [0, 0] joined, expected 2 ranks" in wrong


def test_a_launch_without_compared_losses_does_not_pass(sample_run: RunRecord) -> None:
    """The reference exists, but the launch states that none of its losses were compared with it."""

    def unseen(doc: Any) -> None:
        even(doc, 0.9)
        bound(doc, at_least=0.5)
        timed(doc, "@2")[1]["compared"] = 0

    verdict = judged(sample_run, unseen)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.NOT_MEASURED)
    assert "losses were compared" in verdict.detail


def test_a_strategy_that_excuses_itself_passes_nothing(sample_run: RunRecord) -> None:
    def excused(doc: Any) -> None:
        even(doc, 0.95)
        for answer in doc["described"].values():
            answer["excuses"] = ["casts=True"]

    verdict = judged(sample_run, excused)[SUBJECT]
    assert (verdict.status, verdict.counts) == (Status.RECORDED, Status.RECORDED)
    assert "exclude this case from the comparison with a reference (casts=True)" in verdict.detail


def replanned(run: RunRecord, change: Callable[[Plan], Plan]) -> RunRecord:
    """Return a run without noise whose scaling sweep has the changed plan, with matching hashes."""
    doc = json.loads(json.dumps(to_doc(run)))
    even(doc, 0.95)
    quiet = from_doc(RunRecord, doc)
    before = next(p for p in quiet.plans if any(c.name == SUBJECT for c in p.contrasts))
    after = change(before)
    cases = {a.case.hash: b.case.hash for a, b in zip(before.arms, after.arms, strict=True)}

    def moved(entry: Any) -> Any:
        fields = {"plan": after.hash} if entry.plan == before.hash else {}
        if case := cases.get(getattr(entry, "case", "")):
            fields["case"] = case
        return dataclasses.replace(entry, **fields)

    return dataclasses.replace(
        quiet,
        plans=tuple(after if p is before else p for p in quiet.plans),
        launches=tuple(map(moved, quiet.launches)),
        blocks=tuple(map(moved, quiet.blocks)),
        windows={after.hash if k == before.hash else k: w for k, w in quiet.windows.items()},
        described={cases.get(k, k): answer for k, answer in quiet.described.items()},
    )


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ("nothing", ""),
        ("ideal", "its ideal ratio is"),
        ("baseline", "is not the plain of"),
        ("ablation", "its subject is an ablation"),
    ],
)
def test_a_plan_that_is_not_what_it_is_called_passes_nothing(
    sample_run: RunRecord, wrong: str, word: str
) -> None:
    """A defect found in a plan must reach its verdict."""

    def of_arm(arm: Arm) -> Arm:
        if wrong == "ablation" and arm.name == "@2":
            return dataclasses.replace(arm, role=Role.ABLATION)
        if wrong == "baseline" and arm.name == "plain":
            larger = dataclasses.replace(arm.case, micro_batch=64)
            return dataclasses.replace(arm, case=larger)
        return arm

    def of_contrast(contrast: Contrast) -> Contrast:
        if wrong == "ideal" and contrast.name == SUBJECT:
            return dataclasses.replace(contrast, ideal=0.95 * contrast.ideal)
        return contrast

    def change(plan: Plan) -> Plan:
        return dataclasses.replace(
            plan,
            arms=tuple(map(of_arm, plan.arms)),
            contrasts=tuple(map(of_contrast, plan.contrasts)),
        )

    run = replanned(sample_run, change)
    verdict = next(v for v in verdicts(run) if v.contrast == SUBJECT)
    assert verdict.status is (Status.RECORDED if word else Status.PASS), verdict
    assert word in verdict.detail


def test_a_strategys_own_ideal_passes_nothing(sample_run: RunRecord) -> None:
    """A schedule's efficiency is compared with an ideal that the strategy's file may state."""

    doc = json.loads(json.dumps(to_doc(sample_run)))
    for answer in doc["described"].values():
        answer["own_ideal"] = True
    run = from_doc(RunRecord, doc)
    plan = next(p for p in run.plans if any(c.name == SUBJECT for c in p.contrasts))
    efficiency = next(c for c in plan.contrasts if c.name == SUBJECT)
    of_schedule = next(n for n, m in metrics.METRICS.items() if m.of_schedule)
    contrast = dataclasses.replace(efficiency, metric=of_schedule)
    assert "the user's files" in claimed(ContrastData.of(run, plan, contrast))
    assert claimed(ContrastData.of(run, plan, efficiency)) == ""


@pytest.mark.parametrize("purpose", [Purpose.GATE, Purpose.REFERENCE, Purpose.TIMED])
def test_a_file_that_was_another_one_in_one_launch_passes_nothing(
    sample_run: RunRecord, purpose: Purpose
) -> None:
    """Each launch loads the file again, so the checked version must also be the timed one."""

    def edited(doc: Any) -> None:
        even(doc, 0.95)
        for launch in doc["launches"]:
            for rank in launch["ranks"]:
                rank["sources"] = {"own/mine.py": "a" * 16}
        arm = "@2" if purpose is Purpose.TIMED else None
        last = [x for x in doc["launches"] if x["purpose"] == purpose and arm in (None, x["arm"])][
            -1
        ]
        last["ranks"][0]["sources"] = {"own/mine.py": "b" * 16}

    verdict = judged(sample_run, edited)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.WRONG_WORLD)
    assert "own/mine.py was changed between" in verdict.detail


def test_a_run_without_thresholds_passes_only_if_none_was_asked_for() -> None:
    recorded, skipped = [Status.RECORDED], [Status.SKIP]
    assert exit_status(recorded, require_verdict=False) is Exit.PASSED
    assert exit_status(recorded) is Exit.NOTHING_JUDGED
    assert exit_status(skipped, require_verdict=False) is Exit.NOTHING_JUDGED
    for worse in (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_COMPARABLE):
        assert exit_status([Status.RECORDED, worse], require_verdict=False) is not Exit.PASSED
