"""Test whether short measurements predict goodput at other rates of faults and other intervals.

    python benchmarks/experiments/goodput.py [--faults 20]

Three short trainings, one of them with three faults, measure the costs. Then a training is run for
each rate of faults and each checkpoint interval, and the same faults are simulated with the
measured costs. A training lasts until the given number of faults is expected. The cost of one fault
depends on where in an interval it occurs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness.cases import Catalogue, Device, Settings, Site
from harness.features.recovery import goodput
from harness.features.recovery.player import Player
from harness.measure.progress import Progress
from harness.measure.session import Session

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
RATES_S, INTERVALS = (2.0, 3.0, 5.0), (30, 90)
#: Largest error of a predicted goodput; 0.03 is 3 points.
AIM = 0.03


def main(faults_each: int) -> int:
    """Print the table; return 1 if an error is larger than the goal."""
    case, wrong = Catalogue().normalise(SITE.case("ddp/decoder-nano")), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(Catalogue(), Settings(nodes=(2,), fabric=False), Path(folder), (), Progress()) as s,
    ):
        player = Player(s)
        print("| fault every | saved every | faults | measured | predicted | error | long run |")
        print("|---|---|---|---|---|---|---|")
        for seed, (mtbf_s, every) in enumerate((m, e) for m in RATES_S for e in INTERVALS):
            costs = player.costs(case, every)
            faults = (goodput.schedule(mtbf_s, seed, 2) for _ in range(2))
            steps = round(faults_each * mtbf_s / costs.step_s)
            played = player.play(case, steps, every, next(faults), mtbf_s, seed)
            measured = goodput.goodput(played)
            foretold = goodput.share(goodput.play(costs, steps, every, next(faults), at_steps=True))
            long_run = goodput.expected(costs, every, mtbf_s)
            wrong += abs(measured - foretold) > AIM
            print(
                f"| {mtbf_s:g} s | {every} steps | {len(played.sittings) - 1} | {measured:.1%} |"
                f" {foretold:.1%} | {100 * (measured - foretold):+.1f} points | {long_run:.1%} |",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    sys.exit(main(parser.parse_args().faults))
