"""Ranks slowed down on purpose: they are slow, are named, and leave nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.close import budget_of
from harness.base.errors import LaunchError
from harness.cases import Arm, Catalogue, Device, Plan, Protocol, Role, Site
from harness.launch.engine import Where
from harness.launch.wire.evidence import lives
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Described, Purpose
from harness.training.agent.world import GROUPS, Straggler


@pytest.mark.alone
@pytest.mark.parametrize("groups", [GROUPS, ()], ids=["as-here", "duty-cycle"])
def test_a_straggler_gets_its_share_of_a_core_at_most(groups: Any) -> None:
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    straggler = Straggler(pid, 0.25, groups)
    try:
        began, clock = _cpu_s(pid), time.monotonic()
        time.sleep(1.0)
        got = (_cpu_s(pid) - began) / (time.monotonic() - clock)
    finally:
        straggler.release()
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        straggler.close()
    assert 0 < got < 0.5
    assert not lives(pid)
    assert not [g for root, *_ in GROUPS for g in root.glob(f"scaleproof-{pid}")]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
def test_the_timeline_names_the_straggler(launch: Any, tmp_path: Path) -> None:
    world = launch(
        "ddp/decoder-nano", 2, Purpose.PROFILE, steps=14, cut=3, profiled=6, stragglers="1:0.3"
    )
    assert world.cause is None
    assert (world.out / "rank1.straggler").is_file()
    (tmp_path / "launches").mkdir()
    world.out.rename(tmp_path / "launches" / world.out.name)
    blame = budget_of(tmp_path, world.out.name, world.ranks, 6, talks=True).blame
    assert blame is not None and blame.rank == 1


def test_an_engine_without_support_refuses_stragglers() -> None:
    known = Catalogue()
    launcher = Bench(known, known.get("engines", "torchrun"), Where(nodes=(2,)))
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,), engine="torchrun")
    case = known.normalise(site.case("ddp/mlp-nano", stragglers="1:0.5"))
    arm = Arm(name="a", case=case, role=Role.SUBJECT)
    plan = Plan(name="p", arms=(arm,), contrasts=(), protocol=Protocol(steps=6, cut=1))
    order = Order(plan=plan, arm=arm, purpose=Purpose.TIMED, window=plan.window)
    try:
        with pytest.raises(LaunchError, match="stragglers are not supported"):
            launcher.launch(order, Path("unused"), Described(), lambda step: None)
    finally:
        launcher.worlds.close()
