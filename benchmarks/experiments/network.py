"""Test emulated networks: links have their stated rates, and compression wins where it should.

    python benchmarks/experiments/network.py [--nodes 2 4] [--rates 100 500 1000]

First, sweeps compare the bus bandwidth of a 4 MiB all-reduce with the payload at the stated rate;
the limit is 6 %. Then DDP is measured with and without compression, with one rank per node. The
transfer time is bytes / rate, and the remaining time is measured over fast links (compute,
compressor, and the CPU time of gloo, which several nodes on one machine share). A step must take at
least the larger of the two and at most their sum. If these bounds do not overlap with those of DDP,
compression must win or lose accordingly, and both cases must occur. The exit status is 1 if a test
fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from harness.analysis.judging.notices import PAYLOAD_SHARE, SHAPED_OFF
from harness.cases import Arm, Catalogue, Device, Plan, Protocol, Role, Site
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import LaunchRecord, Purpose

#: Largest relative deviation of a step from its bounds.
TOLERANCE = 0.25
#: Least relative distance between the bounds of two trainings that must differ.
MARGIN = 0.1
#: Speedups above and below which compression counts as having won, or lost.
WON, LOST = 1.2, 0.9
LAUNCHES = 5
#: Rate in Mbit/s of links that are fast enough not to limit a step.
FREE = 10_000.0
STRATEGIES = ("ddp/vggfc-nano", "compressed:fp16/vggfc-nano", "compressed:topk/vggfc-nano")
STEPS, CUT = 8, 3
LASTING = STEPS - CUT


def site_of(nodes: int) -> Site:
    """Return an emulated site with one rank on each node."""
    return Site(
        device=Device.CPU, backend="gloo", nodes=(1,) * nodes, engine="emulated", emulated=True
    )


def step_s(launcher: Bench, name: str, site: Site, rate: float, folder: Path) -> LaunchRecord:
    """Return the launch with the median step time."""
    case = site.case(name, knobs={"emulated.rate_mbit": rate})
    case = launcher.catalogue.normalise(case)
    arm = Arm(name="a", case=case, role=Role.SUBJECT)
    plan = Plan(name=name, arms=(arm,), contrasts=(), protocol=Protocol(steps=STEPS, cut=CUT))
    (described,) = launcher.describe([case])
    listed = []
    for turn in range(LAUNCHES):
        order = Order(plan=plan, arm=arm, purpose=Purpose.TIMED, window=plan.window, turn=turn)
        launch = launcher.launch(order, folder, described, lambda step: None)
        assert launch.steps is not None, launch.cause
        listed.append(launch)
    return sorted(listed, key=lambda x: x.steps.median_s if x.steps else 0.0)[LAUNCHES // 2]


def seconds(launch: LaunchRecord) -> float:
    """Return the median step time of a launch, in s."""
    assert launch.steps is not None
    return launch.steps.median_s


def verdict(low: float, high: float, dense_low: float, dense_high: float) -> str:
    """Return "win" or "lose" for compression if its bounds are apart from those of DDP, else
    nothing.
    """
    if high < dense_low * (1 - MARGIN):
        return "win"
    return "lose" if low > dense_high * (1 + MARGIN) else ""


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 500.0, 1000.0])
    asked = parser.parse_args()
    known, bad, seen = Catalogue(), 0, set[str]()
    print("| nodes | Mbit/s | measured | error | case | step, ms | bounds, ms | speedup | must |")
    print("|---|---|---|---|---|---|---|---|---|")
    for nodes in asked.nodes:
        site = site_of(nodes)
        launcher = Bench(known, known.get("engines", "emulated"), Where(nodes=site.nodes))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            free = {s: seconds(step_s(launcher, s, site, FREE, folder)) for s in STRATEGIES}
            for rate in asked.rates:
                case = site.fabric(site.nodes, {"emulated.rate_mbit": rate})
                carried = [
                    (row.bus_bps or 0.0) * 8 / 1e6
                    for _ in range(3)
                    for row in launcher.sweep(case, folder, only="all_reduce")
                ]
                off = median(carried) / (rate * PAYLOAD_SHARE) - 1
                bad += abs(off) > SHAPED_OFF
                dense = None
                for strategy in STRATEGIES:
                    launch = step_s(launcher, strategy, site, rate, folder)
                    took = seconds(launch)
                    sent = max(r.sent_bytes or 0 for r in launch.ranks) / LASTING
                    wire_s = sent * 8 / (rate * 1e6 * PAYLOAD_SHARE)
                    low, high = max(wire_s, free[strategy]), wire_s + free[strategy]
                    bad += not low * (1 - TOLERANCE) <= took <= high * (1 + TOLERANCE)
                    dense = dense or (took, low, high)
                    speedup = dense[0] / took
                    should = verdict(low, high, dense[1], dense[2])
                    bad += {"win": speedup <= 1, "lose": speedup >= 1}.get(should, False)
                    seen.add("win" if speedup > WON else "lose" if speedup < LOST else "")
                    print(
                        f"| {nodes} | {rate:g} | {median(carried):.1f} | {off:+.1%}"
                        f" | {strategy.partition('/')[0]} | {took * 1e3:.1f}"
                        f" | {low * 1e3:.1f}..{high * 1e3:.1f} | {speedup:.2f} | {should} |",
                        flush=True,
                    )
        launcher.worlds.close()
    bad += not {"win", "lose"} <= seen  # both must occur in the test
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
