"""The evidence of a contrast contains every launch that it depends on, and no other."""

from __future__ import annotations

from harness.analysis.judging.contrast_data import ContrastData
from harness.record import Purpose, RunRecord


def every(run: RunRecord) -> list[ContrastData]:
    return [ContrastData.of(run, plan, c) for plan in run.plans for c in plan.contrasts]


def test_evidence_contains_exactly_the_launches_of_its_arms(main_job: RunRecord) -> None:
    """Count the launches again directly from the record."""
    for evidence in every(main_job):
        arms = {evidence.contrast.subject, *evidence.contrast.baseline}
        cases = {a.case.hash for a in evidence.plan.arms if a.name in arms}
        profiled = evidence.contrast.metric in ("exposed_comm", "comm_share")
        purpose = Purpose.PROFILE if profiled else Purpose.TIMED
        counted = [
            x.launch
            for x in main_job.launches
            if x.plan == evidence.plan.hash and x.arm in arms and x.purpose is purpose
        ]
        assert [x.launch for x in evidence.launches] == counted
        assert {x.case for x in evidence.pilots} <= cases
        assert {x.purpose for x in evidence.pilots} <= {Purpose.PILOT, Purpose.PROBE}
        assert evidence.all_launches == [*evidence.pilots, *evidence.launches]


def test_calibration_launches_are_shared_between_plans(main_job: RunRecord) -> None:
    """One calibration launch serves every plan that measures its case."""
    of_others = [
        pilot
        for evidence in every(main_job)
        for pilot in evidence.pilots
        if pilot.plan != evidence.plan.hash
    ]
    assert of_others


def test_only_injected_stragglers_count_as_slowed_on_purpose(main_job: RunRecord) -> None:
    slowed = {e.plan.name for e in every(main_job) if e.slowed_on_purpose}
    planted = {
        plan.name
        for plan in main_job.plans
        if any(a.case.stragglers or a.case.shares for a in plan.arms)
    }
    assert slowed <= planted


def test_launches_are_selected_by_arm(main_job: RunRecord) -> None:
    for evidence in every(main_job):
        subject = evidence.timed_of([evidence.contrast.subject])
        assert {x.arm for x in subject} <= {evidence.contrast.subject}
        assert evidence.subject is evidence.arms[0].case
