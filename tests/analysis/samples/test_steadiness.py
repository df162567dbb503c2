"""Warm-up detection, the number of steps to time, and steadiness, on series with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.samples import steadiness


def series(n: int, *, seed: int = 0, sd: float = 0.02, rho: float = 0.0) -> np.ndarray:
    """Return n step times around 20 ms; ``rho`` is the lag-1 correlation of the noise."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, sd, n)
    for i in range(1, n):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return 0.02 * np.exp(noise)


def test_warm_up_steps_are_dropped_and_noisy_steps_are_not() -> None:
    shapes = {
        "flat": np.ones(60),
        "autotune": np.where(np.arange(60) < 15, 1.3, 1.0),
        "warming": 1 + 0.5 * np.exp(-np.arange(60) / 5),
    }
    cuts = {
        name: [steadiness.warm_up_steps((series(60, seed=s) * shape).tolist()) for s in range(20)]
        for name, shape in shapes.items()
    }
    assert max(cuts["flat"]) == 0
    assert set(cuts["autotune"]) <= {15, 20, 25, 30}, "at most half of the steps may be dropped"
    assert min(cuts["warming"]) >= 10


def test_no_steps_of_a_short_calibration_launch_are_dropped() -> None:
    assert steadiness.warm_up_steps(series(12).tolist()) == 0


def test_a_drifting_window_is_flagged_and_a_steady_one_rarely() -> None:
    flat = [
        steadiness.steadiness(series(60, seed=s, sd=0.05, rho=0.4).tolist()) for s in range(300)
    ]
    assert sum(not s.steady for s in flat) <= 3
    heating = series(60) * np.linspace(1, 1.08, 60)
    steady = steadiness.steadiness(heating.tolist())
    assert not steady.steady and steady.drift == pytest.approx(0.04, abs=0.01)


def test_one_drifting_launch_is_an_outlier_and_a_noisy_arm_has_none() -> None:
    def arm(sd: float, slopes: list[float]) -> list[steadiness.Steadiness]:
        ramps = [np.linspace(1, 1 + slope, 60) for slope in slopes]
        return [
            steadiness.steadiness((series(60, seed=s, sd=sd) * ramp).tolist())
            for s, ramp in enumerate(ramps)
        ]

    assert steadiness.outlier(arm(0.01, [0.0] * 5 + [0.1] + [0.0] * 2)) == 5
    assert steadiness.outlier(arm(0.01, [0.0] * 8)) is None
    swings = [0.3, -0.2, 0.25, -0.3, 0.2, -0.25, 0.3, -0.2]
    assert steadiness.outlier(arm(0.01, swings)) is None and steadiness.outlier([]) is None


def test_a_drift_too_small_for_one_launch_is_found_over_all() -> None:
    def found(slope: float) -> list[steadiness.Steadiness]:
        ramp = np.linspace(1, 1 + slope, 22)
        return [steadiness.steadiness((series(22, seed=s) * ramp).tolist()) for s in range(8)]

    assert all(s.steady for s in found(0.08))
    assert steadiness.drifts(found(0.08)) and not steadiness.drifts(found(0.0))


def test_the_best_number_of_steps_follows_kalibera_and_jones() -> None:
    """A launch costs 40 s, a step 0.1 s; noise is 3 % per step (lag-1 0.3) and 0.7 % per launch:
    about 117 steps.
    """
    steps = 0.1 * np.exp(np.log(series(4000, sd=0.03, rho=0.3) / 0.02))
    steps_chosen = steadiness.best_steps(steps.tolist(), 40.0, 0.007, 20)
    assert steps_chosen == pytest.approx(117, rel=0.05)


def test_the_number_of_steps_stays_within_its_limits() -> None:
    noisy, exact = series(50, sd=0.3).tolist(), [0.02] * 50
    assert steadiness.best_steps(noisy, 60.0, 0.0, 22) == 8 * 22
    assert steadiness.best_steps(exact, 0.1, 0.02, 22) == 22
    assert steadiness.best_steps(noisy, 0.1, 0.0, 22) == 22, (
        "a cheap launch is repeated instead of extended"
    )


def test_launch_to_launch_variation_excludes_noise_of_steps() -> None:
    rng = np.random.default_rng(2)
    pairs = []
    for i in range(200):
        level = np.exp(rng.normal(0, 0.03, 2))
        pairs.append([(series(40, seed=2 * i + k) * level[k]).tolist() for k in range(2)])
    assert steadiness.sd_of_launches([(a, b) for a, b in pairs]) == pytest.approx(0.03, rel=0.1)
    same = [series(40, seed=i).tolist() for i in range(40)]
    assert (steadiness.sd_of_launches(list(zip(same[::2], same[1::2], strict=True))) or 0) < 0.005
    assert steadiness.sd_of_launches([]) is None
