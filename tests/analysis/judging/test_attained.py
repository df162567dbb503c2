"""Attainment is the share of the efficiency that the fabric allows which a training run reaches."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from harness.analysis.judging.attained import HIDDEN, allowed
from harness.analysis.judging.contrast_data import pairs
from harness.analysis.judging.verdicts import of_plan
from harness.cases import Contrast, Plan
from harness.record import Purpose, Reason, Row, RunRecord, Status


def swept(run: RunRecord, bps: float) -> RunRecord:
    """Return the run with a sweep over its world that measured ``bps`` B/s."""
    size = 1 << 20
    row = Row(
        nodes=(2,), operation="all_reduce", payload_bytes=size, transport="", time_s=size / bps,
        right=True,
    )  # fmt: skip
    return replace(run, fabric=(row,))


@pytest.fixture
def contrast(sample_run: RunRecord) -> Contrast:
    (judged,) = (
        c for c in sample_run.plans[0].contrasts
        if (c.metric, c.subject, c.against) == ("efficiency", "@2", "plain")
    )  # fmt: skip
    return replace(judged, name="attainment@2", metric="attainment")


def plan_with(run: RunRecord, contrast: Contrast) -> tuple[RunRecord, Plan]:
    plan = replace(run.plans[0], contrasts=(*run.plans[0].contrasts, contrast))
    renamed = [replace(x, plan=plan.hash) for x in run.launches]
    windows = {plan.hash: run.windows[run.plans[0].hash]}
    return replace(run, plans=(plan,), launches=tuple(renamed), windows=windows), plan


def test_the_allowed_efficiency_accounts_for_hidden_communication(
    sample_run: RunRecord, contrast: Contrast
) -> None:
    """Compare with arithmetic: a rank's bytes over the rate, minus what the backward pass can hide."""
    run, plan = plan_with(sample_run, contrast)
    case, base = plan.arm("@2").case, plan.arm("plain")
    described = run.described[case.hash].expected
    assert described is not None
    steps = [
        x.steps.mean_s for x in run.launches
        if x.purpose is Purpose.TIMED and x.arm == base.name and x.steps
    ]  # fmt: skip
    step_s = median(steps)
    for exchange_s in (0.0, HIDDEN * step_s, step_s, 10 * step_s):
        rate = max(described.sent_bytes) / exchange_s if exchange_s else 1e18
        seen = allowed(swept(run, rate), plan, contrast)
        assert seen == pytest.approx(step_s / (step_s + max(0.0, exchange_s - HIDDEN * step_s)))


def test_attainment_is_higher_on_a_slow_fabric(sample_run: RunRecord, contrast: Contrast) -> None:
    run, plan = plan_with(sample_run, contrast)
    efficiency = pairs(run, plan, replace(contrast, metric="efficiency")).values
    fast, slow = (pairs(swept(run, rate), plan, contrast).values for rate in (1e12, 1e7))
    assert fast == pytest.approx(efficiency)
    assert min(slow) > max(fast)


def test_attainment_is_not_measured_without_a_sweep(
    sample_run: RunRecord, contrast: Contrast
) -> None:
    run, plan = plan_with(replace(sample_run, fabric=()), contrast)
    (verdict,) = (v for v in of_plan(run, plan) if v.metric == "attainment")
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, Reason.NOT_MEASURED)
    assert "--no-fabric" in verdict.detail
