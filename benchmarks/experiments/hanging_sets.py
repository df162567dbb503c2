"""Measure how often a set of nodes that hang together is named: the table of docs/clusters.md.

    python benchmarks/experiments/hanging_sets.py [--worlds 300]

Simulated launches that use all three of 16 certain nodes hang with some probability. Any other
launch fails by chance, with a small probability.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from harness.features.nodes.isolation import Narrowing

NODES, PLANTED = 16, 3
#: Pairs of probabilities: that a launch on all three nodes hangs, and that another launch fails.
WORLDS = ((1.0, 0.0), (1.0, 0.01), (0.5, 0.0), (0.5, 0.01), (0.3, 0.01), (0.2, 0.02))


def main(worlds: int) -> None:
    print("| hangs in | flakes | named exactly | undecided | named wrongly | launches |")
    print("|---|---|---|---|---|---|")
    for often, flakes in WORLDS:
        exact = undecided = launches = 0
        for seed in range(worlds):
            draw = random.Random(seed)
            planted = {*draw.sample(range(NODES), PLANTED)}

            def launch(
                nodes: Sequence[int],
                draw: random.Random = draw,
                planted: set[int] = planted,
                often: float = often,
                flakes: float = flakes,
            ) -> bool:
                return draw.random() < (often if planted <= {*nodes} else flakes)

            search = Narrowing(range(NODES), launch)
            needed = {*search.needed()}
            exact += needed == planted
            undecided += not needed
            launches += sum(tried.launches for tried in search.tried)
        wrong = worlds - exact - undecided
        shares = " | ".join(f"{count / worlds:.1%}" for count in (exact, undecided, wrong))
        print(f"| {often:.0%} | {flakes:.0%} | {shares} | {launches / worlds:.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=300)
    main(parser.parse_args().worlds)
