"""Profiled world sizes: which profiled launch explains a scaling sweep, and when it shows a
different step.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from harness.analysis import rungs
from harness.analysis.judging.caveats import PERTURBED
from harness.analysis.timeline.losses import Losses
from harness.cases import Mode, Role
from harness.record import Budget, LaunchRecord, Purpose, RunRecord


def profiled(run: RunRecord) -> LaunchRecord:
    return next(x for x in run.launches if x.budget is not None)


def lasting(launch: LaunchRecord, times: float) -> LaunchRecord:
    """Return the launch with step times multiplied by ``times``."""
    assert launch.budget is not None
    ranks = tuple(
        replace(r, step_ns=tuple(round(ns * times) for ns in r.step_ns))
        for r in launch.budget.ranks
    )
    return replace(launch, budget=replace(launch.budget, ranks=ranks))


def step_s(budget: Budget | None) -> float:
    assert budget is not None
    return budget.step_ns / 1e9


def test_losses_by_term_add_up_to_the_lost_speedup(main_job: RunRecord) -> None:
    """Check the identity of ``losses`` with exact fractions at every world size of a real run."""
    seen = rungs.rungs(main_job)
    assert seen
    for rung in seen:
        assert (
            sum(rung.losses.lost.values(), Fraction(0)) + rung.losses.speedup == rung.losses.ranks
        )
        if rung.arm.case.mode is Mode.WEAK and rung.timed_ns and rung.timed_ideal_ns:
            base = main_job.by_case[rung.plan.arm("plain").case.hash]
            steps = [x.steps.mean_s for x in base if x.purpose is Purpose.TIMED and x.steps]
            assert min(steps) <= rung.timed_ideal_ns / 1e9 <= max(steps)


def test_with_several_sweeps_only_the_largest_world_and_its_baseline_are_profiled(
    main_job: RunRecord,
) -> None:
    for plan in main_job.plans:
        contrast = rungs.shown(plan)
        if contrast is None:
            continue
        worlds = [plan.arm(c.subject).case.world_size for c in plan.contrasts]
        assert plan.arm(contrast.subject).case.world_size == max(worlds)
        names = {arm.name for arm in rungs.profiled(plan, num_plans=5)}
        assert names == {contrast.subject, *contrast.baseline}
        every = {a.name for a in plan.arms if a.role not in (Role.ABLATION, Role.CONTROL)}
        assert {arm.name for arm in rungs.profiled(plan, num_plans=1)} == every


@pytest.mark.parametrize(
    ("times", "apart"),
    [(1.0, False), (0.99 * PERTURBED, False), (1.01 * PERTURBED, True), (0.5, True), (3.0, True)],
)
def test_a_profiled_step_much_unlike_the_timed_ones_is_flagged(
    main_job: RunRecord, times: float, apart: bool
) -> None:
    launch = profiled(main_job)
    timed_s = [step_s(launch.budget)] * 4
    assert rungs.apart(lasting(launch, times), timed_s) is apart
    assert not rungs.apart(lasting(launch, times), []), "there is no timed launch to compare with"


def test_the_profile_closest_to_the_timed_steps_is_used(main_job: RunRecord) -> None:
    launch = profiled(main_job)
    timed = [x for x in main_job.by_case[launch.case] if x.purpose is Purpose.TIMED and x.steps]
    usual_s = sum(x.steps.mean_s for x in timed if x.steps) / len(timed)
    fit = usual_s / step_s(launch.budget)
    several = [
        replace(lasting(launch, times * fit), launch=f"profile{i}")
        for i, times in enumerate((0.5, 1.02, 2.0))
    ]
    others = [x for x in main_job.launches if x.budget is None]
    run = replace(main_job, launches=(*others, *several))
    case = run.plan_of[launch.plan].arm(launch.arm).case
    nearest = rungs.nearest(run, case)
    assert nearest is not None and nearest.launch == "profile1"
    assert rungs.nearest(replace(run, launches=tuple(others)), case) is None


def losing(step: int, ideal: int) -> Losses:
    return Losses(ranks=2, step_ns=Fraction(step), ideal_ns=Fraction(ideal), excess_ns={})


@pytest.mark.parametrize(
    ("timed", "ideal", "explains"),
    [(150.0, 100.0, 1.0), (200.0, 100.0, 0.5), (100.0, 100.0, None), (None, 100.0, None)],
)
def test_how_much_of_the_judged_loss_a_profile_explains(
    main_job: RunRecord, timed: float | None, ideal: float, explains: float | None
) -> None:
    """The profile lost 50 ns per step; the timed launches lost as much, twice as much, or nothing."""
    more: dict[str, Any] = {"timed_ns": timed, "timed_ideal_ns": ideal}
    rung = replace(rungs.rungs(main_job)[0], losses=losing(150, 100), **more)
    assert rung.explains == explains
    assert rung.efficiency == (100 / 150 if timed is None else 100 / timed)
