"""The fault matrix: whatever breaks, is the right rank blamed, and is the world gone in time?

    python tests/faults/matrix.py [--repeats 50] [--hangs 10] [--kinds kill raise ...]

Every kind on every strategy and on the first, the middle and the last of three ranks. Prints how
often the right rank was named, the lower 95 % bound of that rate (Clopper and Pearson), how often
the answer was called sure, and the longest time from the fault's deadline to an empty world.
Exit status 1 if a rank was named wrongly, a world lasted too long, or anything was left.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import beta

from harness.discover import Catalogue
from harness.launch import failure
from harness.launch.deploy import Worlds, open_worlds
from harness.launch.engine import Where
from harness.protocol import Deadlines, LaunchSpec
from harness.record import Cause, Purpose
from harness.site import Site
from harness.spec import Device

STRATEGIES = ("ddp", "fsdp", "pipeline")
WORLD = 3
COLLECTIVE_S = 3.0
DEADLINES = Deadlines(start_s=20, first_step_s=20, step_s=6, collective_s=COLLECTIVE_S)
#: How a fault is called when it is found; None = any of those that name the rank.
CRASHES = {"kill": "signal", "raise": "exception", "exit": "exit", "exit3": "exit", "oom": "memory"}
HANGS = {
    "stop": "hang", "hang": "hang", "hang_in_collective": "collective", "skip": "collective",
    "reorder": "collective", "shape": "collective", "dtype": "collective", "no_data": "",
    "lone_checkpoint": "collective",
}  # fmt: skip
FOLDER = Path(__file__).parent / "strategies"
#: Seconds after a crash, or after a hang's own time-out, within which the world must be gone.
GONE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault on one rank of one strategy."""

    kind: str
    strategy: str
    rank: int

    @property
    def sensible(self) -> bool:
        """Whether the fault exists there: only a sharded checkpoint needs all ranks."""
        return self.kind != "lone_checkpoint" or self.strategy == "fsdp"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was said of one planted fault."""

    cause: Cause | None
    took_s: float
    left: int


def cells(kinds: list[str]) -> Iterator[Cell]:
    """All that make sense."""
    for kind, strategy, rank in itertools.product(kinds, STRATEGIES, range(WORLD)):
        cell = Cell(kind=kind, strategy=strategy, rank=rank)
        if cell.sensible:
            yield cell


def strike(worlds: Worlds, known: Catalogue, cell: Cell, folder: Path) -> Outcome:
    """Launch a world with the fault, and see what is said of it."""
    name = f"faulty_{cell.strategy}"
    site = Site(device=Device.CPU, backend="gloo", nodes=(WORLD,))
    model = "decoder-nano" if cell.strategy == "pipeline" else "mlp-nano"
    knobs = {f"{name}.kind": cell.kind, f"{name}.rank": cell.rank}
    case = known.normalise(site.case(f"{name}/{model}", knobs=knobs))
    spec = LaunchSpec(
        launch="fault", purpose=Purpose.TIMED, case=case, twin=case, steps=12, cut=2,
        out=str(folder), files=known.files(case), draw=0, deadlines=DEADLINES,
    )  # fmt: skip
    worlds.describe([])  # its agent is there: it takes seconds to import torch
    began = time.monotonic()
    ended = worlds.launch(spec, lambda step: None)
    took_s = time.monotonic() - began
    left = sum(Path(f"/proc/{e.pid}").exists() for e in ended.ranks)
    return Outcome(
        cause=failure.attribute(ended.ranks, ended.unreachable), took_s=took_s, left=left
    )


def allowed_s(kind: str) -> float:
    """How long a world with this fault may last, its first steps included."""
    waits = 0.0 if kind in CRASHES else max(COLLECTIVE_S, DEADLINES.step_s)
    return GONE_S + waits + 2.0


def right(cell: Cell, found: Outcome) -> bool:
    """Whether the right rank was named, and the fault by its kind."""
    wanted = {**CRASHES, **HANGS}[cell.kind]
    named = found.cause is not None and found.cause.rank == cell.rank
    return named and wanted in ("", found.cause.kind if found.cause else "")


def lower_bound(good: int, total: int) -> float:
    """The lower end of Clopper and Pearson's one-sided 95 % interval."""
    return float(beta.ppf(0.05, good, total - good + 1)) if good else 0.0


def main() -> int:
    """Strike and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50, help="of kinds that crash")
    parser.add_argument("--hangs", type=int, default=10, help="of kinds that hang")
    parser.add_argument("--kinds", nargs="+", default=[*CRASHES, *HANGS])
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    asked = parser.parse_args()
    known = Catalogue([FOLDER])
    worlds = open_worlds(known.get("engines", "local"), Where())
    bad = 0
    print("| fault | strategy | right | lower 95 % | sure | longest | allowed | wrong ones |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in asked.kinds:
        repeats = asked.repeats if kind in CRASHES else asked.hangs
        for strategy in asked.strategies:
            own = [c for c in cells([kind]) if c.strategy == strategy]
            if not own:
                continue
            good = sure = 0
            longest, wrong = 0.0, []
            for _, cell in itertools.product(range(repeats), own):
                with tempfile.TemporaryDirectory() as folder:
                    found = strike(worlds, known, cell, Path(folder))
                good += right(cell, found)
                sure += bool(found.cause and found.cause.sure)
                longest = max(longest, found.took_s)
                if not right(cell, found) and found.cause:
                    c = found.cause
                    wrong.append(f"{cell.rank}: rank {c.rank} {c.kind} {c.message[:60]}")
                bad += not right(cell, found) or bool(found.left)
                bad += found.took_s > allowed_s(kind)
            total = repeats * len(own)
            print(
                f"| {kind} | {strategy} | {good} of {total} | {lower_bound(good, total):.2f} |"
                f" {sure} | {longest:.1f} s | {allowed_s(kind):.0f} s | {'; '.join(wrong[:2])} |",
                flush=True,
            )
    worlds.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
