"""Measure what scaleproof adds to a training step; steps with and without it alternate.

The output is the CPU time for everything that is recorded about a step of 20 ms, and the upper end
of the 95 % interval of its mean, also as a share of the step. The CPU time of the step itself is
measured inside of it and subtracted, because background load would falsify wall times. Memory is
read as often as in a window of ``KEPT`` steps. ``--parts`` also measures the time that is saved by
leaving out each part, in the same turns.

    python benchmarks/cost/step.py [--pairs 400] [--parts]
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

from harness.base.stats import t_interval
from harness.launch.wire.beats import Beats, Phase
from harness.training.accelerator import Accelerator
from harness.training.data import Batch
from harness.training.observe.intake import Intake
from harness.training.observe.memory import Memory
from harness.training.observe.spans import span
from harness.training.rank import window
from harness.training.rank.window import StepLog


class Sleeper:
    """A trainer whose step only uses CPU time for 20 ms, so only scaleproof's part can differ."""

    def __init__(self, step_s: float, intake: Intake | None = None) -> None:
        self.step_s, self.loss = step_s, torch.zeros(())
        self.computed_s = 0.0
        self.model = nn.Sequential(nn.Identity())
        if intake is not None:
            intake.watch(self.model)

    def step(self, batch: Batch) -> torch.Tensor:
        """Use CPU time until the step is over, because a sleep would hide what it overlaps.

        The model is called after that, because observing its inputs is part of the measured cost.
        """
        began_s = time.thread_time()
        end = time.perf_counter() + self.step_s
        while time.perf_counter() < end:
            pass
        self.computed_s = time.thread_time() - began_s
        self.model(batch.inputs)
        return self.loss


#: Number of steps in a usual window.
KEPT = 40
#: The parts of what is recorded about a step; each can be left out.
PARTS = ("sign of life", "spans", "loss", "inputs", "memory")


class Logged:
    """A trainer and the log of its steps, with everything that is recorded or without one part."""

    def __init__(self, n: int, step_s: float, beats: Beats, without: str = "") -> None:
        intake = Intake()
        self.without = without
        self.batch = Batch(ids=torch.zeros(1), inputs=torch.zeros(1), targets=torch.zeros(1))
        intake.pool(self.batch.inputs)
        self.trainer = trainer = Sleeper(step_s, None if without == "inputs" else intake)
        memory = Memory(Accelerator(torch.device("cpu")))
        memory.spread(KEPT)
        if without == "memory":
            memory.every = n + 1
        window.span = _no_span if without == "spans" else span  # type: ignore[assignment]
        self.log = StepLog(
            trainer,  # type: ignore[arg-type]
            n,
            memory=memory,
            beat=(lambda phase, step: None)
            if without == "sign of life"
            else (lambda phase, step: beats.write(0, phase, step)),
            period_s=None,
            events=[],
            intake=intake,
        )
        window.span = span
        if without == "loss":
            trainer.loss = None  # type: ignore[assignment]
        self.log.start(0)

    def run(self, i: int) -> float:
        """Return the CPU time (s) of a step, without the time that the step itself used."""
        began = time.thread_time()
        self.log.run(i, lambda step: self.batch, Phase.STEADY)
        return time.thread_time() - began - self.trainer.computed_s


class _Nothing(contextlib.nullcontext[None]):
    """A span that records nothing."""

    payload = 0


def _no_span(*_: object, **__: object) -> _Nothing:
    return _Nothing()


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--parts", action="store_true", help="also measure the cost of each part")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    step_s, n = 0.02, parsed.pairs
    with tempfile.TemporaryDirectory() as folder:
        beats = Beats(Path(folder) / "beats", 1, create=True)
        bare = Sleeper(step_s)
        left_out = ("", *(PARTS if parsed.parts else ()))
        logged = [Logged(n, step_s, beats, without) for without in left_out]
        added: dict[str, list[float]] = {without: [] for without in left_out}
        for i in range(n):
            began = time.thread_time()
            bare.step(logged[0].batch)
            bare_s = time.thread_time() - began - bare.computed_s
            for launch in logged:
                added[launch.without].append(launch.run(i) - bare_s)
    every = added[""]
    interval = t_interval(every, 0.1)
    assert interval.high is not None
    print(f"{n} pairs of steps of {step_s * 1e3:.0f} ms, with and without")
    print(f"median {median(every) * 1e6:.0f} us of CPU time a step, {median(every) / step_s:.2%}")
    most = f"at most {interval.high * 1e6:.0f} us (upper 95 % end), {interval.high / step_s:.2%}"
    print(f"mean {interval.mean * 1e6:.0f}, {most}")
    for part in left_out[1:]:
        saved = median(a - b for a, b in zip(every, added[part], strict=True))
        print(f"  {part:14} {saved * 1e6:5.0f} us (median, left out)")


if __name__ == "__main__":
    main()
