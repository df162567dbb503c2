"""Provisional bounds decide nothing, nor does simulated hardware in a run that asked for devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.judging.verdicts import conclude, is_stand_in, verdicts
from harness.analysis.results import required
from harness.base.errors import Exit
from harness.cases import BoundSource, Device
from harness.interface.report import screen
from harness.interface.report.headline import headline
from harness.record import SCHEMA, Reason, RunRecord, Status
from harness.record.outcome import exit_status
from tests.analysis.judging.test_conclusion import BAD, RULE, question

PROVISIONAL = replace(RULE, source=BoundSource.PROVISIONAL)
NEAR = (0.81, 0.83, 0.80, 0.84)


@pytest.mark.parametrize("again", [(), BAD])
def test_a_missed_provisional_bound_is_recorded(
    sample_run: RunRecord, again: tuple[float, ...]
) -> None:
    today = replace(sample_run, schema=SCHEMA)
    verdict = conclude(question(BAD, again=again), PROVISIONAL, today)
    assert (verdict.status, verdict.reason) == (Status.RECORDED, Reason.WOULD_FAIL)
    assert verdict.detail.startswith("would fail: ") and verdict.value is not None
    assert exit_status([verdict.counts]) is Exit.NOTHING_JUDGED
    required = conclude(question(BAD, again=BAD), RULE, today)
    assert exit_status([required.counts]) is Exit.FAILED


def test_an_undecided_provisional_bound_gets_more_pairs_and_is_recorded(
    sample_run: RunRecord,
) -> None:
    today = replace(sample_run, schema=SCHEMA)
    running = conclude(question(NEAR), PROVISIONAL, replace(today, complete=False))
    assert running.status is Status.INCONCLUSIVE and running.more is not None
    ended = conclude(question(NEAR), PROVISIONAL, today)
    assert (ended.status, ended.reason) == (Status.RECORDED, Reason.PROVISIONAL)
    assert conclude(question(NEAR), RULE, today).status is Status.INCONCLUSIVE


def test_a_provisional_bound_of_an_older_record_still_fails(sample_run: RunRecord) -> None:
    verdict = conclude(question(BAD, again=BAD), PROVISIONAL, sample_run)
    assert verdict.status is Status.FAIL


def _on_devices(main_job: RunRecord) -> RunRecord:
    """Return the main job as if it had asked for GPUs, with all its bounds provisional."""
    rules = tuple(
        rule
        if "paced" in rule.case or rule.metric == "caught"
        else replace(rule, source=BoundSource.PROVISIONAL)
        for rule in main_job.thresholds
    )
    settings = replace(main_job.settings, device=Device.CUDA)
    run = replace(main_job, schema=SCHEMA, settings=settings, thresholds=rules)
    return replace(run, verdicts=verdicts(run))


def test_a_run_that_judged_no_device_does_not_pass(main_job: RunRecord) -> None:
    run = _on_devices(main_job)
    simulated = [v for v in run.verdicts if is_stand_in(run, v) and v.rule]
    assert any(v.status is Status.PASS for v in simulated), (
        "simulated compute must still pass its rules"
    )
    assert all(v.simulated for v in simulated)
    statuses = {v.counts for v in run.verdicts}
    assert Status.PASS not in statuses and Status.FAIL not in statuses
    assert exit_status([v.counts for v in run.verdicts]) is Exit.NOTHING_JUDGED
    assert headline(run).startswith("RECORDED: 0 of ")
    assert "stand-in" not in headline(run) and not any(v.simulated for v in required(run))
    shown = "\n".join(screen.lines(run, Path("RUN"), "again", 100))
    assert all(v.case.split("@")[0] in shown for v in simulated)


def test_a_broken_simulated_workload_does_not_fail_devices(main_job: RunRecord) -> None:
    run = _on_devices(main_job)
    broken = tuple(
        replace(v, status=Status.ERROR, reason=Reason.LAUNCH_FAILED) if v.simulated else v
        for v in run.verdicts
    )
    assert exit_status([v.counts for v in broken]) is Exit.NOTHING_JUDGED
    assert headline(replace(run, verdicts=broken)).startswith("RECORDED")


def test_verdicts_of_a_cpu_run_are_not_marked_as_simulated(main_job: RunRecord) -> None:
    run = replace(main_job, schema=SCHEMA)
    assert not any(v.simulated for v in verdicts(run))
