"""A PASS or FAIL must survive a noisy host, a drift, a second set of pairs, and another setup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.judging.fingerprint import as_items, fingerprint
from harness.analysis.judging.notices import sentences
from harness.host.admission import Finding, Level
from harness.record import Reason, RunRecord, Status, Verdict
from tests.editing import bound, confirm, even, judged, timed

SUBJECT = "efficiency@2/plain"


def decided(run: RunRecord, *edits: Any, efficiency: float = 0.9) -> Verdict:
    """Return the verdict on 2 ranks after these edits of a record without noise."""

    def edit(doc: Any) -> None:
        even(doc, efficiency)
        for change in edits:
            change(doc)

    return judged(run, edit)[SUBJECT]


def test_a_record_without_noise_passes_or_fails(sample_run: RunRecord) -> None:
    assert decided(sample_run).status is Status.PASS
    failed = decided(sample_run, lambda d: bound(d, at_least=0.95), confirm)
    assert (failed.status, len(failed.again)) == (Status.FAIL, 8)
    assert "confirmed: 0.9 in 8 fresh pairs" in failed.detail


def test_an_unconfirmed_fail_is_inconclusive(sample_run: RunRecord) -> None:
    verdict = decided(sample_run, lambda d: bound(d, at_least=0.95))
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.UNCONFIRMED)


@pytest.mark.parametrize("factor", [1.0556, 1.08, 1.15])
def test_a_second_set_of_launches_never_turns_a_fail_into_a_pass(
    sample_run: RunRecord, factor: float
) -> None:
    verdict = decided(sample_run, lambda d: bound(d, at_least=0.95), lambda d: confirm(d, factor))
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.DISAGREE)


def test_a_fail_at_the_opposite_bound_is_no_confirmation(sample_run: RunRecord) -> None:
    band = {"at_least": 0.92, "at_most": 0.95}
    verdict = decided(sample_run, lambda d: bound(d, **band), lambda d: confirm(d, 1.1))
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.DISAGREE)


@pytest.mark.parametrize("limit", [0.5, 0.99])
def test_a_busy_host_gives_neither_pass_nor_fail(sample_run: RunRecord, limit: float) -> None:
    def busy(doc: Any) -> None:
        bound(doc, at_least=limit)
        confirm(doc)
        for x in doc["launches"]:
            x["foreign_load"] = 0.6

    verdict = decided(sample_run, busy)
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "of the" in verdict.detail and "top -d 1" in verdict.detail


@pytest.mark.parametrize(("check", "known"), [("load", False), ("memory", True)])
def test_a_host_that_fails_admission_gives_no_pass(
    sample_run: RunRecord, check: str, known: bool
) -> None:
    """Load before the run counts only if the launches did not measure the load by other processes."""

    def unfit(doc: Any) -> None:
        bad = {"check": check, "level": "bad", "text": "80% of 2 CPUs", "advice": "wait"}
        doc.update(admission=[bad])
        for x in doc["launches"] if not known else ():
            x["foreign_load"] = None

    verdict = decided(sample_run, unfit)
    assert verdict.reason is Reason.NOISY_HOST
    assert "80% of 2 CPUs" in verdict.detail


def test_load_that_ended_before_the_launches_is_ignored(sample_run: RunRecord) -> None:
    bad = {"check": "load", "level": "bad", "text": "others use 80% of 2 CPUs", "advice": "wait"}
    assert decided(sample_run, lambda d: d.update(admission=[bad])).status is Status.PASS


def test_the_advice_for_a_busy_host_is_printed_once(sample_run: RunRecord) -> None:
    bad = Finding(check="load", level=Level.BAD, text="others use 80% of 2 CPUs", advice="wait")
    printed = sentences(replace(sample_run, admission=(bad, bad)))
    assert printed.count("others use 80% of 2 CPUs: wait") == 1


def test_scatter_between_repeated_launches_indicates_a_noisy_host(sample_run: RunRecord) -> None:
    def scatter(doc: Any) -> None:
        even(doc, 0.9, 0.3)

    assert decided(sample_run, scatter).reason is Reason.NOISY_HOST


def test_scatter_does_not_matter_far_from_the_bound(sample_run: RunRecord) -> None:
    """If the interval is far from the bound, a quieter host could not change the decision."""

    def scatter(doc: Any, least: float) -> None:
        even(doc, 0.9, 0.2)
        bound(doc, at_least=least)

    assert decided(sample_run, lambda doc: scatter(doc, 0.3)).status is Status.PASS
    near = decided(sample_run, lambda doc: scatter(doc, 0.7))
    assert (near.status, near.reason) == (Status.INCONCLUSIVE, Reason.NOISY_HOST)
    assert "launches of one arm in one block differ by" in near.detail


def test_throttled_devices_make_a_verdict_inconclusive(sample_run: RunRecord) -> None:
    hot = {"index": 0, "name": "GPU", "sm_clock_mhz": None, "power_w": None, "temp_c": None,
           "throttle": ["hw_thermal"], "lost": False}  # fmt: skip
    verdict = decided(sample_run, lambda d: timed(d, "@2")[0].update(gpus=[hot]))
    assert verdict.reason is Reason.NOISY_HOST and "hw_thermal" in verdict.detail


def _heat(doc: Any) -> None:
    """Let one launch of the subject drift by 8 %."""
    even(doc, 0.9)
    timed(doc, "@2")[3]["steadiness"] = {"drift": 0.08, "t": 9.0, "mser": 10, "steady": False}


def test_a_drifting_launch_affects_only_its_contrast(sample_run: RunRecord) -> None:
    def near(doc: Any) -> None:
        _heat(doc)
        bound(doc, at_least=0.85)

    verdicts = judged(sample_run, near)
    assert (verdicts[SUBJECT].status, verdicts[SUBJECT].reason) == (
        Status.INCONCLUSIVE,
        Reason.NOT_STEADY,
    )
    assert "was not steady: its steps drift by +8.3%" in verdicts[SUBJECT].detail
    assert len(verdicts[SUBJECT].pairs) == 8, "no pair may be dropped"
    assert verdicts["efficiency@1/plain"].status is Status.RECORDED


@pytest.mark.parametrize(("least", "status"), [(0.8, Status.PASS), (0.99, Status.FAIL)])
def test_a_drifting_launch_does_not_matter_far_from_the_bound(
    sample_run: RunRecord, least: float, status: Status
) -> None:
    def far(doc: Any) -> None:
        _heat(doc)
        bound(doc, at_least=least)
        confirm(doc)

    assert judged(sample_run, far)[SUBJECT].status is status


def test_a_small_drift_of_every_launch_is_detected(sample_run: RunRecord) -> None:
    def warming(doc: Any) -> None:
        for i, x in enumerate(timed(doc, "@2")):
            x["steadiness"] = {"drift": -0.03 + 0.001 * i, "t": -1.0, "mser": 0, "steady": True}

    verdict = decided(sample_run, warming)
    assert verdict.reason is Reason.NOT_STEADY and "every launch drifts" in verdict.detail


def test_load_does_not_affect_a_rule_on_bytes(sample_run: RunRecord) -> None:
    def count(doc: Any) -> None:
        rule = next(t for t in doc["thresholds"] if t["name"] == "cpu_ddp_weak")
        rule.update(metric="sent_bytes", unit="B", baseline=None, at_least=1.0)
        for x in doc["launches"]:
            x["foreign_load"] = 0.9

    assert judged(sample_run, count)["sent_bytes@2"].status is Status.PASS


def test_a_rule_on_bytes_does_not_apply_to_one_rank(sample_run: RunRecord) -> None:
    def count(doc: Any) -> None:
        bound(doc, metric="sent_bytes", unit="B", baseline=None, at_least=1.0, world=[])

    assert [name for name in judged(sample_run, count) if "sent_bytes" in name] == ["sent_bytes@2"]


def test_a_bound_for_another_setup_decides_nothing(sample_run: RunRecord) -> None:
    asked = ["engine=slurm"]
    verdict = decided(sample_run, lambda d: bound(d, fingerprint=asked))
    assert (verdict.status, verdict.reason) == (Status.RECORDED, Reason.NOT_COMPARABLE)
    assert "engine: slurm | local" in verdict.detail


def test_a_bound_that_an_older_version_wrote_still_decides(sample_run: RunRecord) -> None:
    """The older bound names a setting that no longer exists, and variables that do not change
    speed.
    """
    asked = [*as_items(fingerprint(sample_run)), "tune_loop_thread=True", "CUDA_VERSION=13.0"]
    verdict = decided(sample_run, lambda d: bound(d, fingerprint=asked))
    assert verdict.status is Status.PASS


def test_strict_rules_judge_the_worst_pair(sample_run: RunRecord) -> None:
    def one_slow(doc: Any) -> None:
        bound(doc, at_least=0.85, statistic="worst")
        for r in timed(doc, "@2")[2]["ranks"]:
            r["window_s"] *= 1.12
        confirm(doc)

    verdict = decided(sample_run, one_slow)
    assert verdict.status is Status.FAIL and "worst of 8 pairs" in verdict.detail
    assert verdict.worst == pytest.approx(0.9 / 1.12, rel=0.01)
    assert (
        decided(sample_run, lambda d: bound(d, at_least=0.85, statistic="worst")).status
        is Status.PASS
    )


def test_a_ratio_of_two_metrics_is_judged_with_its_unit(sample_run: RunRecord) -> None:
    def rate(doc: Any) -> None:
        even(doc)
        rule = next(t for t in doc["thresholds"] if t["name"] == "cpu_ddp_weak")
        rule.update(metric="sent_bytes/step_s", unit="B/s", baseline=None, at_least=1.0)

    verdict = judged(sample_run, rate)["sent_bytes/step_s@2"]
    assert verdict.status is Status.PASS and verdict.bound == ">=1 B/s"
