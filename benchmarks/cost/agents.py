"""Test whether launches of one agent are more similar than launches of different agents.

Ranks are forked, so all launches of one agent have its address layout and hash seed. Agents take
turns with one launch each, so drift affects them equally. The output is F of a one-way F test, its
5 % point, and the deviations between agents and between launches.

    python benchmarks/cost/agents.py [--agents 5] [--rounds 8]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import f as f_distribution

from harness.base.documents import from_doc
from harness.cases import Catalogue, Device, Site
from harness.launch.deploy import open_worlds
from harness.launch.engine import Where
from harness.launch.wire.messages import LaunchSpec, Timed
from harness.record import RankRecord


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=8)
    parsed = parser.parse_args()
    known = Catalogue()
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    case = known.normalise(site.case("ddp/decoder-nano"))
    local = known.get("engines", "local")
    engines = [open_worlds(local, Where()) for _ in range(parsed.agents)]
    for engine in engines:
        engine.describe([])  # waits until the agent has started
    steps_s: list[list[float]] = [[] for _ in engines]
    for i in range(parsed.rounds):
        for measured_s, engine in zip(steps_s, engines, strict=True):
            with tempfile.TemporaryDirectory() as folder:
                spec = LaunchSpec(
                    launch=f"r{i}", case=case, task=Timed(steps=28, cut=6, draw=1),
                    out=folder, files=known.files(case),
                )  # fmt: skip
                ended = engine.launch(spec, lambda step: None)
                assert all(e.finished for e in ended.ranks), ended
                texts = [(Path(folder) / f"rank{r}.json").read_text() for r in range(2)]
                ranks = [from_doc(RankRecord, json.loads(t)) for t in texts]
            measured_s.append(math.log(max(r.window_s for r in ranks)))
    for engine in engines:
        engine.close()
    values = np.array(steps_s)
    k, n = values.shape
    between = n * values.mean(1).var(ddof=1)
    within = values.var(1, ddof=1).mean()
    ratio, point = between / within, f_distribution.ppf(0.95, k - 1, k * (n - 1))
    agents_sd = math.sqrt(max(0.0, (between - within) / n))
    print(
        f"{k} agents x {n} launches: F({k - 1},{k * (n - 1)}) = {ratio:.2f}, 5% point {point:.2f}"
    )
    print(f"deviation between agents {agents_sd:.2%}, between launches {math.sqrt(within):.2%}")


if __name__ == "__main__":
    main()
