"""Learn from each family of published scaling sweeps: ``python -m benchmarks.foresight.learn``.

A family is what one source published about one kind of machine. Its sizes are predicted from the
priors alone. The file stores each error in standard deviations.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.features.foresight.learned import HALF_SDS, LEARNED, UNTAUGHT
from harness.features.foresight.prediction import Predicted, predict
from harness.features.foresight.published.table import PublishedTable, families_of

PUBLISHED = Path("results/published")


def teach(tables: Sequence[PublishedTable]) -> dict[str, list[float]]:
    """Return the standardised errors of one family, by regime."""
    misses: dict[str, list[float]] = defaultdict(list)
    for table in tables:
        for size in predict(table, UNTAUGHT).predicted:
            if size.measured is not None and not size.implausible:
                misses[size.regime.name].append(round(_deviations(size), 2))
    return dict(misses)


def _deviations(predicted: Predicted) -> float:
    assert predicted.measured is not None
    end = predicted.low if predicted.measured < predicted.efficiency else predicted.high
    sd = abs(np.log(end / predicted.efficiency)) / HALF_SDS / UNTAUGHT.stretch[predicted.regime]
    return float(abs(np.log(predicted.measured / predicted.efficiency)) / sd)


def main(files: Sequence[str]) -> None:
    paths = [Path(f) for f in files] or sorted(PUBLISHED.glob("*.json"))
    lessons = {family: teach(tables) for family, tables in families_of(paths).items()}
    lines = ",\n ".join(f"{json.dumps(f)}: {json.dumps(z)}" for f, z in lessons.items())
    LEARNED.write_text(f"{{\n {lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
