"""False greens that other suites were found to give, and that must not be possible here.

Each test names the mechanism as it was found elsewhere. Rules on bandwidth where latency dominates
are in ``tests/record/test_fabric.py``, renamed kernels in ``tests/analysis/timeline``.
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
    """AWS health check: the PASS file overwrote the WARN."""
    for worse in (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE):
        assert exit_status([worse, Status.PASS, Status.PASS]) is not Exit.PASSED


def test_no_single_pair_decides_for_the_others(sample_run: RunRecord) -> None:
    """GCP scanner: the last pair's result decided for the cluster."""

    def last_is_good(doc: Any) -> None:
        even(doc, 0.3)
        for r in timed(doc, "@2")[-1]["ranks"]:
            r["window_s"] /= 2

    assert judged(sample_run, last_is_good)[SUBJECT].status is not Status.PASS


def test_a_failed_check_without_a_limit_is_told(sample_run: RunRecord) -> None:
    """It ended the whole program, so that nothing else of the run was judged either."""
    check = Check(name="full_size.equal_norms", ok=False, value=1.5)
    gate = next(x for x in sample_run.launches if x.purpose is Purpose.GATE)
    ranks = [dataclasses.replace(r, checks=(*r.checks, check)) for r in gate.ranks]
    wrong = dataclasses.replace(gate, ranks=tuple(ranks))
    assert gate_failure(wrong) == "full_size.equal_norms on rank 0: 1.5"


def test_a_codec_that_leaves_gradients_out_passes_nothing(sample_run: RunRecord) -> None:
    """The reference goes through the codec, too: its losses are those of the launches."""
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
    """pytorch/benchmark: a scheduler that returned [] was a success."""
    assert exit_status([]) is Exit.NOTHING_JUDGED


def test_no_reference_passes_nothing(sample_run: RunRecord) -> None:
    """ReFrame: without a reference the check passes."""
    found = judged(sample_run, lambda doc: doc.update(thresholds=[]))
    assert {v.status for v in found.values()} == {Status.RECORDED}
    assert exit_status([v.status for v in found.values()]) is Exit.NOTHING_JUDGED


def test_a_rule_that_matches_nothing_is_told(sample_run: RunRecord) -> None:
    """cvs: green when no cell matched."""
    doc = to_doc(sample_run)
    bound(doc, case="ddp/resnet-*")
    lines = " ".join(tables.coverage(from_doc(RunRecord, doc)))
    assert "no case: " in lines and "cpu_ddp_weak" in lines


def test_units_cannot_be_mixed(tmp_path: Path) -> None:
    """cvs: TFLOP/s were compared with tokens/s."""
    path = tmp_path / "thresholds.toml"
    path.write_text(
        "[[rule]]\nname='a'\ncase='*'\nmetric='throughput'\nunit='TFLOP/s'\nat_least=1.0\n"
        "source='requirement'\n"
    )
    with pytest.raises(ConfigError, match="is in 'samples/s', not 'TFLOP/s'"):
        load_thresholds(path)


def test_a_run_that_measured_no_steps_is_an_error(sample_run: RunRecord) -> None:
    """DeepSpeed's CPU branch: measured nothing, exited 0."""

    def gates_only(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] != "timed"]

    found = judged(sample_run, gates_only)
    assert {(v.status, v.reason) for v in found.values()} == {(Status.ERROR, Reason.NOT_MEASURED)}


def test_a_figure_from_the_wrong_column_is_found(sample: Path, sample_run: RunRecord) -> None:
    """cloudai: graded the wrong column after the tool had added one. Figures here are recomputed."""
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


def test_a_ranks_own_rate_is_not_the_worlds(sample_run: RunRecord) -> None:
    """SuperBench: a per-rank rate called throughput; optimum-benchmark: no world size in it."""
    plan = sample_run.plans[0]
    case = plan.arm("@2").case
    expected = sample_run.described[case.hash].expected
    assert expected is not None
    launch = next(x for x in sample_run.launches if x.arm == "@2" and x.steps)
    assert launch.steps is not None
    assert launch.consumed == launch.steps.count * expected.global_batch
    assert expected.global_batch == 2 * 8


def test_sizes_that_are_no_power_of_two_are_rungs_too() -> None:
    """Primus: such sizes skipped a third of the nodes."""
    assert rungs(6) == (1, 2, 4, 6) and rungs(12) == (1, 2, 4, 8, 12) and rungs(1) == (1,)


def test_one_good_set_among_bad_ones_is_not_a_pass(sample_run: RunRecord) -> None:
    """Azure: a retry passed at the first success of N."""

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


def test_more_than_linear_is_not_a_pass(sample_run: RunRecord) -> None:
    """Primus, nanoGPT: an MFU above 100 % from a wrong peak was shown as it was."""
    verdict = judged(sample_run, lambda doc: even(doc, 1.3))[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.ERROR, Reason.IMPLAUSIBLE)


def test_the_slowest_ranks_window_counts(sample_run: RunRecord) -> None:
    """SuperBench, bigscience: a time taken before the others were done."""

    def one_late(doc: Any) -> None:
        even(doc, 0.9)
        for x in timed(doc, "@2"):
            x["ranks"][1]["window_s"] *= 2

    verdict = judged(sample_run, one_late)[SUBJECT]
    assert verdict.value == pytest.approx(0.45, rel=0.01)


def test_a_missing_figure_is_no_value_and_no_pass(sample_run: RunRecord) -> None:
    """HTA: a renamed kernel made the overlap NaN."""

    def unknown(doc: Any) -> None:
        bound(doc, metric="sent_bytes", unit="B", baseline=None, at_least=None, at_most=1e12)
        for x in timed(doc, "@2"):
            x["ranks"][0]["sent_bytes"] = None

    verdict = judged(sample_run, unknown)["sent_bytes@2"]
    assert verdict.value is None and verdict.status is Status.ERROR


def test_ranks_that_never_joined_are_not_a_world(sample_run: RunRecord) -> None:
    """nccl-tests: N worlds of one rank, reported as one world of N."""
    case = sample_run.plans[0].arm("@2").case
    expected = sample_run.described[case.hash].expected
    assert expected is not None
    launch = next(x for x in sample_run.launches if x.arm == "@2" and x.steps)
    alone = [dataclasses.replace(r, rank=0) for r in launch.ranks]
    (wrong,) = figures.wrong(case, expected, alone, [], 1)
    assert "ranks [0, 0] joined, expected 2 ranks" in wrong


def test_a_launch_whose_losses_nobody_compared_is_no_evidence(sample_run: RunRecord) -> None:
    """The reference is there, and the launch says that nothing was held against it."""

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
    assert "exclude it from the comparison with a reference (casts=True)" in verdict.detail


def replanned(run: RunRecord, change: Callable[[Plan], Plan]) -> RunRecord:
    """A quiet run whose ladder was planned otherwise: its launches are of the changed plan."""
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
    """What is told of a plan must reach its verdict."""

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
    """An efficiency of the schedule is held against the ideal, which its file may state."""

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
    """Each launch loads it anew: what was checked has to be what was timed."""

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
