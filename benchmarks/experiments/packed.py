"""Compare the node-seconds per verdict of sweeps whose worlds run concurrently or one by one.

    python benchmarks/experiments/packed.py [--nodes 16] [--ladders 3] [--step-ms 1200]

Every scaling sweep is measured in both ways on emulated nodes, in one run each. Simulated steps end
at scheduled times, so the efficiencies are known. The bound of each world size is 2 points below
its known efficiency. Node-seconds are the time from the first correctness check to the verdicts,
times the number of nodes. The exit status is 1 if a bound is decided wrongly, or if concurrent
worlds need more than half of the node-seconds.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from harness.base.documents import Json
from harness.cases import BoundSource, Catalogue, Device, Plan, Protocol, Settings, Site, Threshold
from harness.cases.recipes import ladder
from harness.cases.targets import normalise
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Status

MARGIN = 0.02
#: Relative deviation of a launch. A pair then has 0.5 %, which is at least the deviation of three
#: quarters of the published systems.
NOISE = 0.0035
#: Factor of the known efficiency for each doubling of the nodes.
DOUBLING = 0.97


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The cost of one scaling sweep, and how its bounds were decided."""

    node_s: float
    launches: int
    starts: int  # number of times at which one or more worlds were launched
    undecided: int
    wrong: int
    off: float  # largest error of an efficiency at any world size


def planted(nodes: int) -> dict[int, float]:
    """Return the known efficiency of each world size."""
    worlds = [2**k for k in range(1, nodes.bit_length()) if 2**k <= nodes]
    return {world: round(DOUBLING ** (k + 1), 4) for k, world in enumerate(worlds)}


def plan_of(nodes: int, seed: int, step_ms: float, known: Catalogue) -> Plan:
    """Return a scaling sweep over nodes with one rank each."""
    truth = planted(nodes)
    site = Site(
        device=Device.CPU, backend="gloo", nodes=(1,) * nodes, engine="emulated", emulated=True
    )
    plant = ",".join(f"{world}:{efficiency}" for world, efficiency in truth.items())
    knobs: dict[str, Json] = {
        "paced.mode": "schedule",
        "paced.plant": plant,
        "paced.step_ms": step_ms,
    }
    knobs["paced.noise"] = NOISE
    case = site.case("ddp/paced-small", knobs=knobs)
    protocol = Protocol(steps=8, cut=1, seed=seed)
    shape = lambda world: (1,) * world  # noqa: E731
    plan = ladder(case, tuple(truth), baselines=("plain",), protocol=protocol, shape=shape)
    return normalise(plan, known)


def rules(nodes: int) -> list[Threshold]:
    """Return a threshold for each world size, 2 points below the known efficiency."""
    usual = Threshold(
        name="",
        case="",
        metric="efficiency",
        unit="1",
        source=BoundSource.REQUIREMENT,
        at_least=0.5,
    )
    return [
        replace(usual, name=f"@{n}", case=f"*@{n}x1cpu*", at_least=efficiency - MARGIN)
        for n, efficiency in planted(nodes).items()
    ]


def measure(nodes: int, seed: int, step_ms: float, *, packed: bool) -> Measured:
    """Measure one sweep in a separate run. The time begins after the agents have started."""
    known = Catalogue()
    settings = Settings(
        engine="emulated", nodes=(1,) * nodes, timeline=False, fabric=False, packed=packed
    )
    plan = plan_of(nodes, seed, step_ms, known)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(known, settings, Path(folder), rules(nodes), Progress())
        measurer = Measurer(session)
        with session:
            session.ready()
            began = time.monotonic()
            measurer.measure([plan])
            node_s = nodes * (time.monotonic() - began)
            run = measurer.run.record(complete=True)
    wrong = [v for v in run.verdicts if v.status is not Status.PASS]
    for verdict in wrong:
        sys.stderr.write(f"{verdict.contrast}: {verdict.status}: {verdict.detail}\n")
    truths = zip(run.verdicts, planted(nodes).values(), strict=True)
    off = [v.value - truth for v, truth in truths if v.value is not None]
    starts = {launch.slot or launch.launch for launch in run.launches}
    return Measured(
        node_s=node_s,
        launches=len(run.launches),
        starts=len(starts),
        undecided=sum(v.status is Status.INCONCLUSIVE for v in wrong),
        wrong=sum(v.status is not Status.INCONCLUSIVE for v in wrong),
        off=max(map(abs, off), default=math.nan),
    )


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--ladders", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=1200.0)
    asked = parser.parse_args()
    print("| worlds | node-s | launches | starts | PASS | undecided | wrong | error, points |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    taken = []
    wrong = 0
    for packed in (True, False):
        measured_rows = [
            measure(asked.nodes, seed, asked.step_ms, packed=packed)
            for seed in range(asked.ladders)
        ]
        taken.append(fmean(f.node_s for f in measured_rows))
        rungs = asked.ladders * len(planted(asked.nodes))
        undecided, errors = (
            sum(f.undecided for f in measured_rows),
            sum(f.wrong for f in measured_rows),
        )
        wrong += errors
        print(
            f"| {'concurrent' if packed else 'one by one'} | {taken[-1]:.0f} |"
            f" {fmean(f.launches for f in measured_rows):.1f} | {fmean(f.starts for f in measured_rows):.1f} |"
            f" {rungs - undecided - errors} of {rungs} | {undecided} | {errors} |"
            f" {100 * max(f.off for f in measured_rows):.2f} |",
            flush=True,
        )
    print(f"\nconcurrent worlds take {taken[0] / taken[1]:.0%} of the node-seconds")
    return int(wrong > 0 or taken[0] > taken[1] / 2)


if __name__ == "__main__":
    raise SystemExit(main())
