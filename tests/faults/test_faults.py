"""Faults injected into real ranks: all processes end, and the faulty rank is named."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.cases import Arm, Catalogue, Device, Plan, Protocol, Role, Site
from harness.launch import causes
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.engines.emulated import Emulated
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.evidence import lives
from harness.launch.wire.messages import Deadlines, LaunchSpec, Timed
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Purpose
from tests.waiting import until

from .kinds import KINDS, On
from .matrix import FOLDER, Cell, Found, striking

ROOT = Path(__file__).parents[2]
QUICK = Deadlines(start_s=20, first_step_s=20, step_s=3, collective_s=30)
SLOW = {"paced.step_ms": 200.0}
KNOWN = Catalogue([FOLDER])
EMULATED = Emulated().probe()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Fault:
    """Sends a signal to one rank once it has reached its steady steps."""

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
        """Return the rank's pid: the agent forks its children in the order of ranks."""
        agents = [
            int(p) for p in children(os.getpid()) if b"harness.training.agent.agent" in cmdline(p)
        ]
        (ranks,) = filter(None, map(children, agents))  # agents of other tests are idle
        return sorted(map(int, ranks))[self.rank]


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
    assert gone(world)


def test_a_stopped_rank_is_named_and_its_launch_ends(launch: Any, tmp_path: Path) -> None:
    fault = Fault(tmp_path, 1, signal.SIGSTOP)
    world = launch(
        "ddp/paced-small", 3, Purpose.TIMED, knobs=SLOW, deadlines=QUICK, tick=fault, steps=60
    )
    assert world.cause is not None
    assert (world.cause.rank, world.cause.kind, world.cause.sure) == (1, "hang", True)
    assert world.ends[1].silent_s >= QUICK.step_s, "it was given its time first"
    assert gone(world)
    assert any("File" in e.stack for e in world.ends if e.rank != 1), "the others' stacks were kept"
    assert "step" in (world.out / "rank1.pyspy").read_text(), "and its own, by py-spy"


#: One cell per kind; tox -e faults runs every kind on every strategy and rank, many times.
ONE_OF_EACH = [
    Cell(kind=name, strategy=kind.strategies[i % len(kind.strategies)], rank=i % 3)
    for i, (name, kind) in enumerate(KINDS.items())
]


@pytest.fixture(scope="module")
def struck(request: pytest.FixtureRequest) -> dict[Cell, Found]:
    """The reports on all selected cells."""
    asked = [i.callspec.params.get("cell") for i in request.session.items if hasattr(i, "callspec")]
    out: dict[Cell, Found] = {}
    for on in On:
        cells = [c for c in ONE_OF_EACH if c in asked and KINDS[c.kind].on is on]
        if cells and (on is not On.EMULATED or EMULATED.available):
            with striking(on, KNOWN, min(3, len(cells))) as strikes:
                out |= dict(strikes(cells))
    return out


#: Kinds that are reported like another kind, and two more ways to end an agent.
ALIKE = (
    "reorder", "dtype", "no_data",
    "exit3", "segfault", "recursion", "io_error", "chatty", "system_exit", "interrupted", "exec",
    "device_oom", "agent_stops", "agent_at_start",
)  # fmt: skip


#: Starts a thread in every agent process, as a library that it loads may do.
THREADED = """
import sys, threading
if any("agent" in word for word in sys.orig_argv):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_an_agent_that_ends_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends the reason over its channel: "its agent is gone" alone helps nobody."""
    (tmp_path / "sitecustomize.py").write_text(THREADED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    site = Site(device=Device.CPU, backend="gloo", nodes=(1,))
    case = KNOWN.normalise(site.case("single/mlp-nano"))
    spec = LaunchSpec(
        launch="first", case=case, out=str(tmp_path / "out"), files=KNOWN.files(case),
        deadlines=QUICK, task=Timed(steps=2, cut=1, draw=1),
    )  # fmt: skip
    with contextlib.closing(open_worlds(KNOWN.get("engines", "local"), Where())) as fleet:
        ended = fleet.launch(spec, lambda step: None)
    cause = causes.attribute(ended.ranks, ended.unreachable)
    assert cause is not None
    assert "its agent is gone: the agent has started threads python" in cause.message


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "cell",
    [pytest.param(c, marks=[pytest.mark.full] * (c.kind in ALIKE)) for c in ONE_OF_EACH],
    ids=lambda c: f"{c.kind}-{c.strategy}-{c.rank}",
)
def test_the_faulty_rank_is_named(struck: dict[Cell, Found], cell: Cell) -> None:
    if cell not in struck:
        pytest.skip(EMULATED.reason)
    hit = struck[cell]
    assert hit.right(cell), hit
    assert hit.sure or cell.kind == "absent"  # without rank 0 the cause stays unsure
    assert hit.took_s < cell.allowed_s
    assert hit.left == 0


def test_an_unsure_cause_is_reported_only_after_a_second_launch(tmp_path: Path) -> None:
    """If two ranks issue different collectives, nobody can say which one is wrong."""
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    knobs = {"faulty_ddp.kind": "shape"}
    case = KNOWN.normalise(site.case("faulty_ddp/mlp-nano", knobs=knobs))
    launcher = Bench(KNOWN, KNOWN.get("engines", "local"), Where())
    try:
        arm = Arm(name="a", case=case, role=Role.SUBJECT)
        plan = Plan(name="p", arms=(arm,), contrasts=(), protocol=Protocol(steps=12, cut=2))
        order = Order(plan=plan, arm=arm, purpose=Purpose.PILOT, window=plan.window)
        (described,) = launcher.describe([case])
        launch = launcher.launch(order, tmp_path, described, lambda step: None)
    finally:
        launcher.worlds.close()
    assert launch.cause is not None and not launch.cause.sure
    assert launch.cause.kind == "collective"
    assert len(list(tmp_path.glob("launches/*"))) == 2, "it was launched twice"


#: A program with one launch, in which rank 1 hangs; the launch's files are below argv[1].
PROGRAM = """
import sys
from pathlib import Path
from tests.faults import matrix
cell = matrix.Cell(kind="hang", strategy="ddp", rank=1)
known = matrix.Catalogue([matrix.FOLDER])
worlds = matrix.worlds_on(matrix.On.LOCAL, known)
print(matrix.strike(worlds, known, cell, Path(sys.argv[1])).kind, flush=True)
sys.stdin.read()  # what is left must be gone while the program still lives
"""


@pytest.mark.full
@pytest.mark.parametrize("who", ["program", pytest.param("agent", marks=pytest.mark.full)])
def test_processes_started_by_ranks_end_too(tmp_path: Path, who: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin and program.stdout
        started = tmp_path / "launches/fault"
        assert until(lambda: len(list(started.glob("*.pid"))) == 9)
        pid_files = list(started.glob("*.pid"))
        pids = [int(f.read_text()) for f in pid_files]
        assert all(map(lives, pids))
        (agent,) = [
            p for p in children(program.pid) if b"harness.training.agent.agent" in cmdline(p)
        ]
        os.kill(int(agent) if who == "agent" else program.pid, signal.SIGKILL)
        if who == "agent":
            assert program.stdout.readline() == "node\n"
        until(lambda: not any(map(lives, pids)))
        assert not [f.name for f, pid in zip(pid_files, pids, strict=True) if lives(pid)]
        program.stdin.close()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, marks=pytest.mark.full),
        pytest.param(signal.SIGINT, marks=pytest.mark.full),
        signal.SIGHUP,
    ],
)
def test_no_process_is_left_when_the_program_is_ended(tmp_path: Path, number: int) -> None:
    command = [
        *(sys.executable, "-m", "harness", "run", "ddp/paced-small/weak", "--cpus", "2"),
        *("--results", str(tmp_path)),
    ]
    usual = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would ignore it
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True
    )
    signal.signal(signal.SIGHUP, usual)
    pids: set[int] = set()

    def working() -> bool:
        with contextlib.suppress(OSError):  # the process has ended
            agents = [
                p for p in children(process.pid) if b"harness.training.agent.agent" in cmdline(p)
            ]
            pids.update(int(p) for a in agents for p in (a, *children(int(a))))
        return len(pids) >= 3

    until(working)
    process.send_signal(number)
    output = process.communicate(timeout=30)[0]
    assert len(pids) >= 3, f"an agent and two ranks were seen: {output}"
    until(lambda: not any(map(lives, pids)))
    assert not any(map(lives, pids))
    if number != signal.SIGKILL:
        assert process.returncode == 2, output
        assert "Traceback" not in output
        assert list(tmp_path.glob("runs/*/*/record.json")), "what was measured is kept"
