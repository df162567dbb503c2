"""What each family of published ladders teaches: ``python -m harness.features.foresight.learn``."""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.features.foresight.learned import LEARNED, UNTAUGHT
from harness.features.foresight.predict import calibrate, departs, predict
from harness.features.foresight.published.table import PublishedTable, read
from harness.features.foresight.terms import UNKNOWNS

#: Standard deviations in half of an interval that holds 80 % of a normal.
HALF_SDS = 1.2816
PUBLISHED = Path("results/published/scaling.json")


def teach(tables: Sequence[PublishedTable]) -> dict[str, Any]:
    """Of one family: its unknowns when all points are known, and its misses when they were not."""
    fits = [_unknowns(t) for t in tables]
    squares: dict[str, list[float]] = defaultdict(list)
    for table in tables:
        for regime, square in _squares(table):
            squares[regime].append(square)
    unknowns = {}
    for i, name in enumerate(UNKNOWNS):
        values, sds = [f[0][i] for f in fits], [f[1][i] for f in fits]
        precision = np.array([1 / sd**2 for sd in sds])
        value = float(np.average(values, weights=precision))
        unknowns[name.name] = [round(value, 4), round(float(np.mean(sds)), 4)]
    return {
        "unknowns": unknowns,
        "squares": {regime: round(float(np.mean(all_)), 3) for regime, all_ in squares.items()},
    }


def _unknowns(table: PublishedTable) -> tuple[list[float], list[float]]:
    """Mode and standard deviation of each unknown given all points of a table."""
    points = [p for p in table.points if p.step_s and not departs(p, table.points)]
    known = calibrate(table, points, (), UNTAUGHT)
    return list(known.mode), list(np.sqrt((known.root**2).sum(axis=1)))


def _squares(table: PublishedTable) -> list[tuple[str, float]]:
    """(regime, square of the miss in standard deviations) of each point that was predicted."""
    out = []
    for size in predict(table, UNTAUGHT).predicted:
        if size.measured is None or size.implausible:
            continue
        half = np.log(size.high / size.low) / 2 / UNTAUGHT.stretch[size.regime]
        z = np.log(size.efficiency / size.measured) / (half / HALF_SDS)
        out.append((size.regime.name, float(z**2)))
    return out


def main(files: Sequence[str]) -> None:
    families: dict[str, list[PublishedTable]] = defaultdict(list)
    for file in files or [str(PUBLISHED)]:
        for table in read(Path(file)):
            if isinstance(table, PublishedTable):
                families[table.family].append(table)
    lessons = {family: teach(tables) for family, tables in families.items()}
    LEARNED.write_text(json.dumps(lessons, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
