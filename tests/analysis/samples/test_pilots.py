"""The time at which a loss is reached, and windows of whole periods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.analysis.samples import calibration
from harness.analysis.samples.figures import SMOOTH, reached
from harness.cases import Arm, Device, Plan, Protocol, Role, Site


def samples(losses: list[float]) -> Any:
    marks = np.arange(len(losses) + 1) * 0.5
    return SimpleNamespace(loss=np.array(losses), marks_s=marks)


EXPECTED: Any = SimpleNamespace(global_batch=32)


def test_a_loss_is_reached_when_the_mean_of_several_steps_reaches_it() -> None:
    losses = [5.0] * 10 + [1.0] * 30
    step = reached([samples(losses), samples(losses)], 1.0, EXPECTED)
    assert step is not None
    assert step.steps == 10 + SMOOTH
    assert step.samples == 32 * step.steps and step.seconds == step.steps * 0.5


def test_one_lucky_step_is_not_enough() -> None:
    assert reached([samples([5.0] * 20 + [0.0] + [5.0] * 20)], 1.0, EXPECTED) is None
    assert reached([samples([1.0] * (SMOOTH - 1))], 1.0, EXPECTED) is None


def test_losses_of_different_ranks_are_averaged() -> None:
    assert reached([samples([0.0] * 9), samples([4.0] * 9)], 2.0, EXPECTED) is not None
    assert reached([samples([0.0] * 9), samples([4.0] * 9)], 1.9, EXPECTED) is None


@pytest.mark.parametrize("period", [1, 3, 8, 50])
def test_windows_contain_whole_periods(period: int) -> None:
    case = Site(device=Device.CPU, backend="gloo", nodes=(2,)).case("local_sgd/mlp-nano")
    arm = Arm(name="@2", case=case, role=Role.SUBJECT)
    plan = Plan(name="", arms=(arm,), contrasts=(), protocol=Protocol(steps=32, cut=6))
    description: Any = {case.hash: SimpleNamespace(expected=SimpleNamespace(period=period))}
    window = calibration.windows(plan, [], description)["@2"]
    assert (window.steps - window.cut) % period == 0
    assert 26 <= window.steps - window.cut < 26 + period
