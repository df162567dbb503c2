"""Compare the time to the verdicts of a whole scaling sweep with one torchrun per case.

scaleproof checks every world size, calibrates it, measures it in 8 pairs and judges it. torchrun
starts every case once for as many steps, without checks or statistics.

    python benchmarks/cost/ladder.py [--world 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from harness.cases import Catalogue, Device, Settings, Site
from harness.cases.recipes import REAL, ladder
from harness.cases.site import rungs
from harness.cases.targets import normalise
from harness.launch.engines.torchrun import Torchrun
from harness.launch.wire.messages import LaunchSpec, Timed
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    parsed = parser.parse_args()
    known = Catalogue()
    site = Site(device=Device.CPU, backend="gloo", nodes=(parsed.world,))
    plan = normalise(ladder(site.case("ddp/decoder-nano"), rungs(parsed.world)), known)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        session = Session(known, Settings(), Path(folder), (), Progress())
        Measurer(session).measure([plan])
        ours = time.perf_counter() - began
        launches = len(session.run.launches)
        session.close()
        engine, began = Torchrun(), time.perf_counter()
        for arm in plan.arms:
            spec = LaunchSpec(
                launch=arm.name, case=arm.case, out=str(Path(folder) / arm.name),
                task=Timed(steps=REAL.steps, cut=REAL.cut, draw=0), files=known.files(arm.case),
            )  # fmt: skip
            Path(spec.out).mkdir()
            ended = engine.launch(spec, lambda: None)
            assert all(e.finished for e in ended.ranks), ended
        theirs = time.perf_counter() - began
        engine.close()
    each_s = theirs / len(plan.arms)
    print(f"sweep: {launches} launches, with checks, 8 pairs and verdicts: {ours:.1f} s")
    print(f"torchrun: {len(plan.arms)} launches, one for each case, without checks: {theirs:.1f} s")
    many = each_s * launches
    print(f"as many launches by torchrun would take {many:.0f} s: {many / ours:.0f}x")


if __name__ == "__main__":
    main()
