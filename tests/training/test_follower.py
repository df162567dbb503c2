"""The follower of devices holds their power limits, and restores them however a world ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.host import nvml
from harness.training.agent.follower import Follower
from tests.waiting import until


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with every power limit that was set on one device, in W."""
    given = tmp_path / "limits"
    given.write_text("700\n")

    def now() -> tuple[nvml.PowerLimit, ...]:
        watts = int(given.read_text().split()[-1])
        return (nvml.PowerLimit(index=0, now_w=watts, least_w=200, most_w=700),)

    def limit(index: int, watts: int) -> bool:
        with given.open("a") as lines:
            lines.write(f"{watts}\n")
        return True

    def follow(file: Path, places: Any, every_s: float, over: Any, *, links: bool) -> None:
        while not over(every_s):
            pass

    monkeypatch.setattr(nvml, "power_limits", now)
    monkeypatch.setattr(nvml, "limit_power", limit)
    monkeypatch.setattr(nvml, "follow", follow)
    return given


def following(folder: Path) -> Follower:
    case = SimpleNamespace(power_cap_w=400)
    spec: Any = SimpleNamespace(case=case, task=None, out=str(folder))
    return Follower(spec, 0, lambda: [0], ())


def test_a_killed_world_leaves_no_power_limit(limits: Path, tmp_path: Path) -> None:
    follower = following(tmp_path)
    assert until(lambda: limits.read_text().endswith("400\n"))
    follower.kill()
    assert limits.read_text().split() == ["700", "400", "700"]


def test_a_killed_agent_leaves_no_power_limit(limits: Path, tmp_path: Path) -> None:
    agent = os.fork()
    if agent == 0:
        following(tmp_path)
        signal.pause()
    assert until(lambda: limits.read_text().endswith("400\n"))
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    assert until(lambda: limits.read_text().endswith("700\n"))
