"""What the harness adds to a training step: on and off alternated step by step in one process.

Prints the median cost of everything that is noted about a step, its share of a step, and the upper
end of the 95 % interval of that share.

    python benchmarks/cost/step.py [--pairs 400]
"""

from __future__ import annotations

import argparse
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
from harness.training.rank.window import StepLog


class Sleeper:
    """A step of 20 ms that does nothing else: the harness is all that can differ."""

    def __init__(self, step_s: float, intake: Intake | None = None) -> None:
        self.step_s, self.loss = step_s, torch.zeros(())
        self.model = nn.Sequential(nn.Identity())
        if intake is not None:
            intake.watch(self.model)

    def step(self, batch: Batch) -> torch.Tensor:
        """Busy until the time is over: a sleep would hide what it overlaps. The model comes on
        top, since what watches its inputs is part of what is measured.
        """
        end = time.perf_counter() + self.step_s
        while time.perf_counter() < end:
            pass
        self.model(batch.inputs)
        return self.loss


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    step_s, n = 0.02, parsed.pairs
    with tempfile.TemporaryDirectory() as folder:
        beats = Beats(Path(folder) / "beats", 1, create=True)
        intake = Intake()
        trainer, bare = Sleeper(step_s, intake), Sleeper(step_s)
        log = StepLog(
            trainer,  # type: ignore[arg-type]
            n,
            memory=Memory(Accelerator(torch.device("cpu"))),
            beat=lambda phase, step: beats.write(0, phase, step),
            period_s=None,
            events=[],
            intake=intake,
        )
        batch = Batch(ids=torch.zeros(1), inputs=torch.zeros(1), targets=torch.zeros(1))
        intake.pool(batch.inputs)
        log.start(0)
        added = []
        for i in range(n):
            began = time.perf_counter()
            log.run(i, lambda step: batch, Phase.STEADY)
            middle = time.perf_counter()
            bare.step(batch)
            added.append((middle - began) - (time.perf_counter() - middle))
    found = t_interval(added, 0.1)
    assert found.high is not None
    print(f"{n} pairs of steps of {step_s * 1e3:.0f} ms, with and without")
    print(f"median {median(added) * 1e6:.0f} us a step, {median(added) / step_s:.2%}")
    print(f"mean at most {found.high * 1e6:.0f} us (upper 95 % end), {found.high / step_s:.2%}")


if __name__ == "__main__":
    main()
