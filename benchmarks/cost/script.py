"""What watching costs a user's own training: the same loop with and without hooks, in turn.

Each is a process of its own, since hooks stay. Prints the median step of both, and the ratio with
its 95 % interval over the pairs; and the time that is spent in hooks, by a clock around them, which
a noisy machine shows more sharply.

    python benchmarks/cost/script.py [--pairs 10] [--steps 100]
"""

from __future__ import annotations

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from torch import nn

from harness.base.stats import t_interval
from harness.cases import CaseSpec, Device, Mode
from harness.cases.script import parse
from harness.launch.wire.beats import Beats
from harness.launch.wire.messages import LaunchSpec, Script
from harness.training.rank.setup import RankPlace
from harness.training.script.evidence import begin, rank_of
from harness.training.script.hooks import Hooks
from harness.training.script.observed import Observed

FOREVER = 10**6
#: Steps that are not counted: parameters are looked at, roots are found.
WARM = 10


def main() -> None:
    """Measure and print; as a child: one loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--child", choices=("watched", "bare"))
    parsed = parser.parse_args()
    if parsed.child:
        step_s = loop(parsed.child == "watched", parsed.steps)
        print(step_s, SPENT.total_s / (parsed.steps - WARM))
        return
    ratios, steps = [], {"watched": list[float](), "bare": list[float]()}
    in_hooks_s = []
    for pair in range(parsed.pairs):
        for way in ("watched", "bare") if pair % 2 else ("bare", "watched"):
            step_s, hooks_s = child(way, parsed.steps)
            steps[way].append(step_s)
            in_hooks_s += [hooks_s] if way == "watched" else []
        ratios.append(math.log(steps["watched"][-1] / steps["bare"][-1]))
    found = t_interval(ratios, 0.05)
    assert found.low is not None and found.high is not None
    print(f"bare     {1e3 * median(steps['bare']):.3f} ms a step")
    print(f"watched  {1e3 * median(steps['watched']):.3f} ms a step")
    low, mean, high = (100 * math.expm1(v) for v in (found.low, found.mean, found.high))
    share = median(in_hooks_s) / median(steps["bare"])
    print(f"in hooks {1e6 * median(in_hooks_s):.0f} us a step, {share:.2%} of it")
    print(f"watching costs {mean:+.2f} % [{low:+.2f}, {high:+.2f}] of a step, {parsed.pairs} pairs")


def child(way: str, steps: int) -> tuple[float, float]:
    """Median step of a loop in a process of its own, and its time in hooks a step, s."""
    command = [sys.executable, __file__, "--child", way, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    step_s, hooks_s = map(float, done.stdout.split())
    return step_s, hooks_s


class Spent:
    """Time in functions, nested ones counted once."""

    total_s = 0.0
    inside = False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            if self.inside:
                return function(*args, **more)
            self.inside, began = True, time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                self.inside, self.total_s = False, self.total_s + time.perf_counter() - began

        return timed


SPENT = Spent()


def loop(watched: bool, steps: int) -> float:
    """A step of some 20 ms on one core, of 24 layers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if watched:
        watch()
    blocks = [layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters())
    marks = []
    for step in range(steps):
        if step == WARM:
            SPENT.total_s = 0.0
        marks.append(time.perf_counter())
        loss = model(torch.randn(64, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    taken = [b - a for a, b in itertools.pairwise(marks)]
    return median(taken[WARM:])


def watch() -> None:
    """Watch this process as a rank of a script would be; its window never ends."""
    for name in ("_call", "_return", "_first_call", "_stepping", "_stepped", "_passing"):
        setattr(Hooks, name, SPENT.around(getattr(Hooks, name)))
    for name in ("enter_backward", "leave_backward"):
        setattr(Observed, name, SPENT.around(getattr(Observed, name)))
    folder = Path(tempfile.mkdtemp())
    case = CaseSpec(
        strategy="script", model="loop", size="own", mode=Mode.WEAK, world_size=1, nodes=(1,),
        device=Device.CPU, backend="gloo", script="loop.py",
    )  # fmt: skip
    task = Script(folder=str(folder), steps=FOREVER, cut=4)
    spec = LaunchSpec(launch="cost", case=case, out=str(folder), task=task, files={})
    place = RankPlace(
        rank=0, world_size=1, local_rank=0, node=0, device=0, cpus=(0,), parent=0,
        store=lambda: torch.distributed.HashStore(),
    )  # fmt: skip

    def leave() -> NoReturn:
        raise SystemExit(0)

    beats = Beats(folder / "beats", 1, create=True)
    begin(rank_of(spec, place, beats, place.store()), parse(["loop.py"]), "forked", leave)


if __name__ == "__main__":
    main()
