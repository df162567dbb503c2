"""Measure the cost of a growing history: adding a nightly run, asv's page, and ``history``.

python benchmarks/cost/history.py          # a year of 15 cases with two values each
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness.base import programs
from harness.features.history import asv_results
from harness.features.history.asv_page import publish
from harness.features.history.ingest import ingest
from harness.features.history.night import nights
from harness.features.history.trends import trends

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "results/samples/ddp-nano"
CASES = 15


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def row(count: int, results: Path) -> str:
    """Return the table row of a history with ``count`` nightly runs."""
    programs.load_module(str(HERE.parent / "core.py")).year(results, count, CASES)
    first = seconds(lambda: asv_results.write(results, nights(results)))
    more = seconds(lambda: ingest([SAMPLE], results))
    commits, listed = asv_results.write(results, nights(results)), trends(nights(results))
    page = seconds(lambda: publish(results, listed, commits))
    words = [sys.executable, "-m", "harness", "history", "--results", str(results)]
    took_s = seconds(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))
    return f"{count:7}{2 * CASES:8}{first:13.2f}{more:10.2f}{page:9.2f}{took_s:9.2f}"


def main() -> None:
    print(
        f"{'nights':>7}{'series':>8}{'first write':>13}{'one more':>10}{'publish':>9}{'history':>9}"
    )
    for count in (30, 90, 180, 365):
        with tempfile.TemporaryDirectory() as folder:
            print(row(count, Path(folder)))


if __name__ == "__main__":
    main()
