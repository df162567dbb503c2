"""Publish to Bencher (https://bencher.dev/docs/reference/bencher-metric-format/)."""

import json
from collections.abc import Sequence
from pathlib import Path

from harness.features.sharing.figures import figures
from harness.record import RunRecord
from harness.record.store import write_text

SINK = "a file for Bencher: bencher run --adapter json --file FILE"
TO = "bencher.json"


def publish(runs: Sequence[tuple[RunRecord, Path]], to: str) -> str:
    """Write all figures to a file. If several runs have the same figure, the last one counts."""
    document: dict[str, dict[str, dict[str, float]]] = {}
    for run, _ in runs:
        for figure in figures(run):
            ends = {"lower_value": figure.low, "upper_value": figure.high}
            known = {name: end for name, end in ends.items() if end is not None}
            measure = figure.measure.replace(" ", "-")
            document.setdefault(figure.case, {})[measure] = {"value": figure.value, **known}
    write_text(Path(to), json.dumps(document, indent=1) + "\n")
    return f"{to}: {len(document)} cases"
