"""Collect published sweeps for ``harness.features.foresight.curve``, and score its predictions.

python -m benchmarks.foresight.curves               # score each family by the others
python -m benchmarks.foresight.curves --from FOLDER # collect sweeps from the READMEs of a checkout

The collected READMEs are those of github.com/NVIDIA/DeepLearningExamples at 729963dd (2024-04-04,
Apache-2.0 and BSD-3). Only sweeps of one batch per rank are used, and none whose efficiency is
above 110 % or below 20 %, because such a table has another meaning than its headings say.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

from harness.features.foresight.curve import LADDERS, Sizes, extrapolate, ladders
from harness.features.foresight.published.table import PublishedTable, read

SOURCE = "github.com/NVIDIA/DeepLearningExamples at 729963dd, README.md of each model"
#: Efficiencies outside of this range belong to tables with another meaning.
PLAUSIBLE = (0.2, 1.1)


def collected(folder: Path) -> dict[str, list[tuple[int, Sizes]]]:
    """Return the sweeps of each README as (ranks in a node, sizes)."""
    families: dict[str, list[tuple[int, Sizes]]] = {}
    for path in sorted(folder.rglob("README.md")):
        tables = [table for table in read(path) if isinstance(table, PublishedTable)]
        sweeps = [sweep for table in tables for sweep in _sweeps(table)]
        if sweeps:
            families[str(path.parent.relative_to(folder))] = sweeps
    return families


def _sweeps(table: PublishedTable) -> Iterator[tuple[int, Sizes]]:
    groups: dict[object, dict[int, float]] = defaultdict(dict)
    for point in table.points:
        shape = point.shape
        if point.step_s and shape.stages == shape.tensor == shape.context == 1:
            batch = shape.micro_batch * shape.micros
            rate = float(f"{shape.rate(point.step_s):.5g}")
            groups[shape.model, shape.configuration, batch].setdefault(shape.ranks, rate)
    for rates in groups.values():
        sizes = sorted(rates.items())
        relative = [rate / sizes[0][1] for _, rate in sizes]
        if len(sizes) > 1 and PLAUSIBLE[0] < min(relative) and max(relative) < PLAUSIBLE[1]:
            yield table.fabric.per_node, sizes


def scores() -> Iterator[str]:
    """Yield a table of errors and coverage, each family predicted from the others."""
    cells: dict[tuple[str, str], list[tuple[float, float, bool, float]]] = defaultdict(list)
    for family, of_family in ladders().items():
        for per_node, sizes in of_family:
            for count, larger in combinations(range(1, len(sizes) + 1), 2):
                known, (ranks, rate) = sizes[:count], sizes[larger - 1]
                seen = extrapolate(known, ranks, per_node, leaving_out=family)
                true, constant = rate / sizes[0][1], known[-1][1] / sizes[0][1]
                measured = "one size" if count == 1 else "several sizes"
                where = "inside a node" if ranks <= per_node else "across nodes"
                cells[measured, where].append(
                    (
                        abs(seen.efficiency - true),
                        abs(constant - true),
                        seen.low <= true <= seen.high,
                        (seen.high - seen.low) / 2,
                    )
                )
    yield "| measured | predicted | sizes | mean | p90 | constant | in 80 % | ± |"
    yield f"|{'---|' * 8}"
    for (measured, where), rows in sorted(cells.items()):
        off, constants, inside, half = np.array(rows, float).T
        yield (
            f"| {measured} | {where} | {len(rows)} | {100 * off.mean():.1f} |"
            f" {100 * np.quantile(off, 0.9):.1f} | {100 * constants.mean():.1f} |"
            f" {100 * inside.mean():.0f} % | {100 * half.mean():.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    if folder is None:
        print(*scores(), sep="\n")
        return
    lines = ",\n ".join(f"{json.dumps(f)}: {json.dumps(s)}" for f, s in collected(folder).items())
    LADDERS.write_text(
        f'{{"source": {json.dumps(SOURCE)},\n "families": {{\n {lines}\n}}}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
