"""Planted faults on real ranks: the world is gone, and the right rank is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.beat import Beats, Phase
from harness.protocol import Deadlines
from harness.record import Purpose

ROOT = Path(__file__).parents[2]
QUICK = Deadlines(start_s=20, first_step_s=20, step_s=3, collective_s=30)
SLOW = {"paced.step_ms": 200.0}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Fault:
    """Sends a signal to one rank once it is in its steady steps."""

    def __init__(self, tmp_path: Path, rank: int, number: int) -> None:
        self.tmp_path, self.rank, self.number, self.sent_at = tmp_path, rank, number, 0.0

    def __call__(self, step: int) -> None:
        beats = self.tmp_path / "launch0" / "beats0"
        if self.sent_at or not beats.is_file():
            return
        phase, _, _ = Beats(beats, 3).read(self.rank)
        if phase is Phase.STEADY:
            os.kill(self.pid(), self.number)
            self.sent_at = time.monotonic()

    def pid(self) -> int:
        """The rank's pid: the agent's children, forked in the order of ranks."""
        (agent,) = [int(p) for p in children(os.getpid()) if b"harness.worker.agent" in cmdline(p)]
        return sorted(map(int, children(agent)))[self.rank]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def cmdline(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def gone(world: Any) -> bool:
    return not any(alive(e.pid) for e in world.ends)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_is_named(launch: Any, tmp_path: Path, rank: int) -> None:
    fault = Fault(tmp_path, rank, signal.SIGKILL)
    world = launch(
        "ddp/paced-small", 3, Purpose.TIMED, knobs=SLOW, deadlines=QUICK, tick=fault, steps=60
    )
    assert world.cause is not None
    assert (world.cause.rank, world.cause.kind, world.cause.sure) == (rank, "signal", True)
    assert set(world.cause.victims) == {0, 1, 2} - {rank}
    assert time.monotonic() - fault.sent_at < 5
    assert gone(world)


def test_a_stopped_rank_is_named_and_its_world_ended(launch: Any, tmp_path: Path) -> None:
    fault = Fault(tmp_path, 1, signal.SIGSTOP)
    world = launch(
        "ddp/paced-small", 3, Purpose.TIMED, knobs=SLOW, deadlines=QUICK, tick=fault, steps=60
    )
    assert world.cause is not None
    assert (world.cause.rank, world.cause.kind, world.cause.sure) == (1, "hang", True)
    assert time.monotonic() - fault.sent_at < QUICK.step_s + 5
    assert gone(world)
    assert any("File" in e.stack for e in world.ends if e.rank != 1), "the others' stacks were kept"


FAULTY = '''"""Breaks on purpose."""
import os, sys, time
from harness.strategies import ddp
SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(fault="none")
expect = ddp.expect
class Trainer:
    def __init__(self, inner, ctx, fault):
        self.inner, self.ctx, self.fault, self.count = inner, ctx, fault, 0
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def step(self, batch):
        self.count += 1
        if self.ctx.rank == 1 and self.count == 4:
            if self.fault == "raise":
                raise ValueError("planted")
            if self.fault == "exit":
                os._exit(0)
            if self.fault == "exit3":
                os._exit(3)
            if self.fault == "hang":
                time.sleep(3600)
        return self.inner.step(batch)
def build(model, ctx):
    return Trainer(ddp.build(model, ctx), ctx, ctx.case.knob("faulty.fault", "none"))
'''


@pytest.fixture(scope="session")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from harness.discover import Catalogue

    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty.py").write_text(FAULTY)
    return Catalogue([folder])


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("raise", "exception", "ValueError: planted"),
        ("exit", "exit", "left with status 0"),
        ("exit3", "exit", "left with status 3"),
        ("hang", "hang", "faulty.py, line"),
    ],
)
def test_each_way_to_break_names_rank_1(launch: Any, fault: str, kind: str, says: str) -> None:
    began = time.monotonic()
    world = launch(
        "faulty/mlp-nano", 3, Purpose.TIMED, knobs={"faulty.fault": fault}, deadlines=QUICK
    )
    assert world.cause is not None
    assert (world.cause.rank, world.cause.kind) == (1, kind)
    assert says in world.cause.message
    assert time.monotonic() - began < 12
    assert gone(world)


def test_the_next_world_is_well(launch: Any) -> None:
    broken = launch(
        "faulty/mlp-nano", 2, Purpose.TIMED, knobs={"faulty.fault": "raise"}, deadlines=QUICK
    )
    assert broken.cause is not None
    assert launch("ddp/mlp-nano", 2, Purpose.TIMED).cause is None


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        "ddp/paced-small/weak",
        "--cpus",
        "2",
        "--results",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    pids: set[int] = set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(pids) < 3:
        agents = [p for p in children(process.pid) if b"harness.worker.agent" in cmdline(p)]
        pids = {int(a) for a in agents} | {int(r) for a in agents for r in children(int(a))}
        os.sched_yield()
    assert len(pids) == 3, "an agent and two ranks were seen"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while any(alive(p) for p in pids) and time.monotonic() < deadline:
        os.sched_yield()
    assert not any(alive(p) for p in pids)
