"""Publish to github-action-benchmark.

https://github.com/benchmark-action/github-action-benchmark
"""

import json
from collections.abc import Sequence
from pathlib import Path

from harness.features.sharing.figures import figures
from harness.record import RunRecord
from harness.record.store import write_text

SINK = "a file for github-action-benchmark, with tool: customBiggerIsBetter"
TO = "benchmark.json"


def publish(runs: Sequence[tuple[RunRecord, Path]], to: str) -> str:
    """Write a file with all figures whose larger values are better. Times are left out."""
    rows = []
    for run, _ in runs:
        for figure in figures(run):
            if figure.unit == "s":
                continue
            known = figure.low is not None and figure.high is not None
            span = f"{figure.low:.4g} to {figure.high:.4g}" if known else "n/a"
            stand_in = ", simulated" if figure.stand_in else ""
            row = {
                "name": f"{figure.case}: {figure.measure}",
                "unit": figure.unit,
                "value": figure.value,
                "range": span,
                "extra": f"{run.machine.title}, run {run.run}{stand_in}",
            }
            rows.append(row)
    write_text(Path(to), json.dumps(rows, indent=1) + "\n")
    return f"{to}: {len(rows)} figures"
