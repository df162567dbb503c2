"""The fault matrix: is the faulty rank named after each fault, and does the launch end in time?

    python -m tests.faults.matrix [--repeats 50] [--hangs 10] [--jobs 4]
                                  [--kinds kill raise ...] [--strategies ddp ...]

Every kind on every strategy and on the first, the middle and the last of three ranks. Prints how
often the faulty rank was named, the lower 95 % bound of that rate (Clopper and Pearson), how often
the answer was marked as sure, and the longest time from the fault (from the launch, if a rank or
node never joins) until all processes have ended and the cause is known. Exit status 1 if a rank was
named wrongly, a launch lasted too long, or any process was left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore, Lock

from scipy.stats import beta

from harness.analysis.timeline.close import budget_of
from harness.base.documents import from_doc
from harness.cases import Catalogue, Device, Site
from harness.launch import causes
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.engines.emulated import enter
from harness.launch.fleet import Fleet
from harness.launch.wire.evidence import lives
from harness.launch.wire.messages import Deadlines, LaunchSpec, Timed
from harness.record import RankRecord

from .kinds import DEADLINES, KINDS, STRATEGIES, On
from .nodes import forked

WORLD = 3
NODES = {On.LOCAL: (WORLD,), On.NODES: (1,) * WORLD, On.EMULATED: (1,) * WORLD}
FOLDER = Path(__file__).parent / "strategies"
#: Seconds after a crash, or after the time-out that ends a hang, until all processes must be gone.
GONE_S = 5.0
#: Launches that may be in their first step at a time, and seconds for which one may delay others:
#: on a busy machine a first step of FSDP would exceed the time-out of its collectives.
TURNS, FIRST_STEP_S = os.cpu_count() or 1, 4.0
STARTING, WAITING = BoundedSemaphore(TURNS), Lock()


class Turn:
    """A launch's turn to start, which ends with its first step. Called with the current step.

    A launch that trains to its end takes every turn until then: others would slow its ranks down.
    """

    def __init__(self, whole: bool) -> None:
        self.whole, self.turns = whole, TURNS if whole else 1

    def __enter__(self) -> Turn:
        with WAITING:  # avoids a deadlock between two launches that want all turns
            for _ in range(self.turns):
                STARTING.acquire()
        self.began, self.over = time.monotonic(), False
        return self

    def __call__(self, step: int) -> None:
        if self.whole:
            return
        if step >= 1 or time.monotonic() - self.began > FIRST_STEP_S:
            self.end()

    def end(self) -> None:
        """Let the next launch start."""
        if not self.over:
            self.over = True
            STARTING.release(self.turns)

    def __exit__(self, *why: object) -> None:
        self.end()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault on one rank of one strategy."""

    kind: str
    strategy: str
    rank: int

    @property
    def allowed_s(self) -> float:
        """How long a launch may last with this fault."""
        kind = KINDS[self.kind]
        return GONE_S + kind.waits_s + kind.trains_s


@dataclass(frozen=True, kw_only=True)
class Found:
    """The report on one injected fault; ``rank`` is None if nothing was reported."""

    rank: int | None
    kind: str
    message: str
    sure: bool
    took_s: float
    left: int

    def right(self, cell: Cell) -> bool:
        """Whether the faulty rank and the kind of the fault were named."""
        return self.rank == cell.rank and KINDS[cell.kind].called in ("", self.kind)


def worlds_on(on: On, known: Catalogue, shared_gpu: bool = False) -> Fleet:
    """Open three ranks for faults; they may share a GPU."""
    device = Device.CUDA if shared_gpu else Device.CPU
    where = Where(nodes=NODES[on], device=device, shared_gpu=shared_gpu)
    return forked(where) if on is On.NODES else open_worlds(known.get("engines", on), where)


def strike(
    worlds: Fleet, known: Catalogue, cell: Cell, folder: Path, shared_gpu: bool = False
) -> Found:
    """Launch three ranks with the fault, and return what is reported."""
    name = f"faulty_{cell.strategy}"
    on = KINDS[cell.kind].on
    site = Site(
        device=Device.CUDA if shared_gpu else Device.CPU, backend="gloo", nodes=NODES[on],
        emulated=on is On.EMULATED, shared_gpu=shared_gpu,
    )  # fmt: skip
    model = "decoder-nano" if cell.strategy == "pipeline" else "mlp-nano"
    struck = folder / "struck"
    knobs = {
        f"{name}.kind": cell.kind, f"{name}.rank": cell.rank, f"{name}.struck": str(struck)
    }  # fmt: skip
    case = known.normalise(site.case(f"{name}/{model}", knobs=knobs))
    out = folder / "launches" / "fault"
    out.mkdir(parents=True)
    spec = LaunchSpec(
        launch="fault", case=case, task=Timed(steps=12, cut=2, draw=1),
        out=str(out), files=known.files(case), deadlines=DEADLINES,
    )  # fmt: skip
    if cell.kind == "slow":
        traced = Timed(steps=12, cut=2, profiled=6, draw=1)
        spec = replace(spec, task=traced, deadlines=Deadlines())
    agents = [int(node.agent.partition("-")[0]) for node in worlds.nodes]  # waits for torch
    with outside(cell, agents, out), Turn(whole=KINDS[cell.kind].trains_s > 0) as turn:
        began = time.time()
        ended = worlds.launch(spec, turn)
        took_s = time.time() - (struck.stat().st_mtime if struck.exists() else began)
    left = sum(lives(int(p.read_text())) for p in out.glob("*.pid"))
    cause = causes.attribute(ended.ranks, ended.unreachable)
    if cause is not None:
        return Found(
            rank=cause.rank, kind=cause.kind, message=cause.message, sure=cause.sure,
            took_s=took_s, left=left,
        )  # fmt: skip
    if cell.kind == "slow":
        return replace(waited_for(folder, out), took_s=took_s, left=left)
    return Found(rank=None, kind="", message="", sure=False, took_s=took_s, left=left)


@contextmanager
def outside(cell: Cell, agents: Sequence[int], out: Path) -> Iterator[None]:
    """Inject faults that act from outside of the ranks."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (out / "taken").write_text(str(taken.getsockname()[1]))
        if cell.kind == "absent":
            (out / "absent").write_text(str(cell.rank))
        if cell.kind == "absent_node":
            os.kill(agents[cell.rank], signal.SIGSTOP)
        if cell.kind == "agent_at_start":
            os.kill(agents[cell.rank], signal.SIGKILL)
        yield
        if cell.kind == "cut":
            again = (*enter(str(agents[cell.rank])), "ip", "link", "set", "eth0", "up")
            subprocess.run(again, check=True)


def waited_for(folder: Path, out: Path) -> Found:
    """Return the rank that the timeline names."""
    files = [out / f"rank{rank}.json" for rank in range(WORLD)]
    ranks = [from_doc(RankRecord, json.loads(f.read_text())) for f in files]
    blame = budget_of(folder, out.name, ranks, 6, talks=True).blame
    if blame is None:
        return Found(rank=None, kind="", message="", sure=False, took_s=0, left=0)
    return Found(
        rank=blame.rank, kind="slow", message=f"{blame.term}", sure=blame.share > 0.5,
        took_s=0, left=0,
    )  # fmt: skip


@contextmanager
def striking(
    on: On, known: Catalogue, jobs: int, shared_gpu: bool = False
) -> Iterator[Callable[[Sequence[Cell]], list[tuple[Cell, Found]]]]:
    """Injects the faults of cells, several launches at a time: most of the time is waiting."""
    free: SimpleQueue[Fleet] = SimpleQueue()

    def one(cell: Cell) -> tuple[Cell, Found]:
        worlds = free.get()
        try:
            with tempfile.TemporaryDirectory() as folder:
                return cell, strike(worlds, known, cell, Path(folder), shared_gpu)
        finally:
            free.put(worlds)

    # Agents end with the thread that started them, so the pool must live as long as they do.
    with ThreadPoolExecutor(jobs) as pool:
        opened = [worlds_on(on, known, shared_gpu) for _ in range(jobs)]
        for worlds in opened:
            free.put(worlds)
        try:
            yield lambda cells: list(pool.map(one, cells))
        finally:
            for worlds in opened:
                pool.submit(worlds.close).result()


def lower_bound(good: int, total: int) -> float:
    """The lower end of Clopper and Pearson's one-sided 95 % interval."""
    return float(beta.ppf(0.05, good, total - good + 1)) if good else 0.0


def row(cells: Sequence[tuple[Cell, Found]]) -> tuple[str, bool]:
    """The table row of one kind and strategy, and whether it is as required."""
    first, total = cells[0][0], len(cells)
    good = sum(counts.right(cell) for cell, counts in cells)
    longest = max(counts.took_s for _, counts in cells)
    left = sum(counts.left for _, counts in cells)
    wrong = [
        f"{cell.rank}: rank {counts.rank} {counts.kind} {counts.message[:60]}"
        for cell, counts in cells
        if not counts.right(cell)
    ]
    line = (
        f"| {first.kind} | {first.strategy} | {good} of {total} | {lower_bound(good, total):.2f} |"
        f" {sum(counts.sure for _, counts in cells)} | {longest:.1f} s | {first.allowed_s:.0f} s |"
        f" {left} | {'; '.join(wrong[:2])} |"
    )
    return line, good == total and longest <= first.allowed_s and not left


def main() -> int:
    """Inject the faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50, help="repeats of kinds that crash")
    parser.add_argument("--hangs", type=int, default=10, help="repeats of kinds that hang")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--jobs", type=int, default=4, help="launches at a time")
    parser.add_argument("--shared-gpu", action="store_true", help="ranks share a GPU, over gloo")
    asked = parser.parse_args()
    known = Catalogue([FOLDER])
    bad = False
    print(
        "| fault | strategy | right | lower 95 % | sure | longest | allowed | left | wrong ones |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for on in On:
        with striking(on, known, asked.jobs, asked.shared_gpu) as strikes:
            for name in (k for k in asked.kinds if KINDS[k].on is on):
                kind = KINDS[name]
                repeats = asked.hangs if kind.waits_s else asked.repeats
                for strategy in (s for s in kind.strategies if s in asked.strategies):
                    cells = [Cell(kind=name, strategy=strategy, rank=r) for r in range(WORLD)]
                    line, well = row(strikes(cells * repeats))
                    bad |= not well
                    print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
