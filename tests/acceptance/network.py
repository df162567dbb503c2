"""Emulated networks: do links carry what they say, and does compression win where it should?

    python tests/acceptance/network.py [--nodes 2 4] [--rates 100 500 1000]

First the sweep: bus bandwidth of a 4 MiB all-reduce against the stated rate's payload, within 6 %.
Then ladders of DDP and of fp16-compressed DDP over one rank a node: the time of a step against
bytes / rate + compute, taken from the same run. On slow links the half-sized gradient must win; at
memory speed it only costs. Exit status 1 if something is off.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness.discover import Catalogue
from harness.findings import EMULATED_OFF, PAYLOAD_SHARE
from harness.launch.engine import Where
from harness.launcher import Launcher, Order
from harness.record import LaunchRecord, Purpose
from harness.site import Site
from harness.spec import Arm, Device, Plan, Protocol, Role
from harness.stats import median

#: Steps differ from bytes / rate + compute by this much at most, relatively.
TOLERANCE = 0.25
LAUNCHES = 3


def site_of(nodes: int) -> Site:
    """One rank on each node."""
    return Site(
        device=Device.CPU, backend="gloo", nodes=(1,) * nodes, engine="emulated", emulated=True
    )


def step_s(launcher: Launcher, name: str, site: Site, rate: float, folder: Path) -> LaunchRecord:
    """The launch of median step time."""
    case = site.case(name, knobs={"emulated.rate_mbit": rate})
    case = launcher.catalogue.normalise(case)
    arm = Arm(name="a", case=case, role=Role.SUBJECT)
    plan = Plan(name=name, arms=(arm,), contrasts=(), protocol=Protocol(steps=8, cut=3))
    (described,) = launcher.describe([case])
    found = []
    for turn in range(LAUNCHES):
        order = Order(plan=plan, arm=arm, purpose=Purpose.TIMED, window=plan.pilot, turn=turn)
        launch = launcher.launch(order, folder, described, lambda step: None)
        assert launch.steps is not None, launch.cause
        found.append(launch)
    return sorted(found, key=lambda x: x.steps.median_s if x.steps else 0.0)[LAUNCHES // 2]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 500.0, 1000.0])
    asked = parser.parse_args()
    known, bad = Catalogue(), 0
    print(
        "| nodes | Mbit/s | carried | off | ddp, ms | by formula | fp16, ms | by formula | fp16 |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for nodes in asked.nodes:
        site = site_of(nodes)
        launcher = Launcher(
            known, "emulated", Where(nodes=site.nodes), tune_loop_thread=True, poll_gpus=False
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            alone = step_s(launcher, "single/vggfc-nano", site_of(1), 1000.0, folder)
            assert alone.steps is not None
            for rate in asked.rates:
                case = site.fabric(site.nodes, {"emulated.rate_mbit": rate})
                carried = [
                    (row.bus_bps or 0.0) * 8 / 1e6
                    for _ in range(3)
                    for row in launcher.sweep(case, folder, only="all_reduce")
                ]
                off = median(carried) / (rate * PAYLOAD_SHARE) - 1
                bad += abs(off) > EMULATED_OFF
                cells = []
                for strategy in ("ddp/vggfc-nano", "compressed:fp16/vggfc-nano"):
                    launch = step_s(launcher, strategy, site, rate, folder)
                    assert launch.steps is not None
                    sent = max(r.sent_bytes or 0 for r in launch.ranks) / launch.steps.count
                    wire_s = sent * 8 / (rate * 1e6 * PAYLOAD_SHARE)
                    compute_s = alone.steps.median_s * max(1.0, nodes / 2)
                    low, high = max(wire_s, compute_s), wire_s + compute_s
                    took = launch.steps.median_s
                    bad += not low * (1 - TOLERANCE) <= took <= high * (1 + TOLERANCE)
                    cells += [took, low, high]
                faster = cells[0] / cells[3]
                print(
                    f"| {nodes} | {rate:g} | {median(carried):.1f} | {off:+.1%}"
                    f" | {cells[0] * 1e3:.1f} | {cells[1] * 1e3:.1f}..{cells[2] * 1e3:.1f}"
                    f" | {cells[3] * 1e3:.1f} | {cells[4] * 1e3:.1f}..{cells[5] * 1e3:.1f}"
                    f" | {faster:.2f}x |",
                    flush=True,
                )
        launcher.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
