"""Compare the cost of a launch, apart from its steps, of the local engine and of torchrun.

Both start the same worker (store, process group, first collective, model, one step, result files).
Launches of the two engines alternate, so background load affects both. The output is medians,
ratios, and the phases of rank 0 under the local engine.

    python benchmarks/cost/launch.py [--rounds 5] [--worlds 1 2 4 8]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from harness.cases import Catalogue, Device, Site
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.wire.messages import LaunchSpec, Timed


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4, 8])
    parsed = parser.parse_args()
    known = Catalogue()
    local = open_worlds(known.get("engines", "local"), Where())
    torchrun = open_worlds(known.get("engines", "torchrun"), Where())
    began = time.perf_counter()
    local.describe([])  # waits until the agent has started
    print(f"agent ready after {time.perf_counter() - began:.2f} s, once a run")
    print(f"{'ranks':>5}  {'local':>8}  {'torchrun':>8}  {'ratio':>6}   medians of {parsed.rounds}")
    for world in parsed.worlds:
        case = known.normalise(
            Site(device=Device.CPU, backend="gloo", nodes=(world,)).case("ddp/mlp-nano")
        )
        files = known.files(case)
        seconds: dict[str, list[float]] = {"local": [], "torchrun": []}
        phases: dict[str, list[float]] = {}
        for i in range(parsed.rounds):
            for name, engine in (("local", local), ("torchrun", torchrun)):
                with tempfile.TemporaryDirectory() as folder:
                    spec = LaunchSpec(
                        launch=f"{name}{i}", case=case, task=Timed(steps=1, cut=0, draw=1),
                        out=str(Path(folder)), files=files,
                    )  # fmt: skip
                    began = time.perf_counter()
                    ended = engine.launch(spec, lambda step: None)
                    seconds[name].append(time.perf_counter() - began)
                    assert all(e.finished for e in ended.ranks), ended
                    if name == "local":
                        rank = json.loads((Path(folder) / "rank0.json").read_text())
                        for phase, taken in rank["phases_s"].items():
                            phases.setdefault(phase, []).append(taken)
        ours, theirs = median(seconds["local"]), median(seconds["torchrun"])
        print(f"{world:>5}  {ours:>6.3f} s  {theirs:>6.2f} s  {theirs / ours:>5.0f}x")
        split = ", ".join(f"{k} {median(v) * 1e3:.0f}" for k, v in phases.items())
        print(f"       rank 0, ms: {split}", flush=True)
    local.close()


if __name__ == "__main__":
    main()
