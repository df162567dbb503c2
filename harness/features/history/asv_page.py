"""The page of asv for the history: its graphs, with the changes that scaleproof found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base import files, programs
from harness.base.documents import Json
from harness.base.errors import RecordError
from harness.features.history.asv_results import LEDGER, RESULTS, benchmark, beside
from harness.features.history.trends import Trend, TrendStatus

#: Folder of asv's page within the results.
HTML = "html"


#: File of asv's page that lists regressions; it is overwritten with the changes found here.
OWN = "regressions.json"


#: Copy of the regressions that asv's own detector found.
THEIRS = "regressions-asv.json"


#: The configuration of asv for a results folder.
CONF: Mapping[str, Json] = {
    "version": 1,
    "project": "scaleproof",
    "repo": LEDGER,
    "branches": ["main"],
    "dvcs": "git",
    "environment_type": "existing",
    "results_dir": RESULTS,
    "html_dir": HTML,
    "show_commit_url": "history.html#",
    "regressions_thresholds": {".*": 0.01},
}


def configure(results: Path) -> Path:
    """Write the configuration with which asv reads these results; return its file."""
    configuration = results / "asv.conf.json"
    files.write({configuration: json.dumps(CONF, indent=1) + "\n"})
    return configuration


def publish(results: Path, trends: Sequence[Trend], commits: Mapping[str, str]) -> Path:
    """Let asv write its page to ``results/html`` and replace its regressions; return the folder.

    Raise RecordError with asv's last line of output if it fails.
    """
    configuration = configure(results)
    html = results / HTML
    done = subprocess.run(
        [sys.executable, *programs.MODULE, "asv", "publish", "--config", configuration.name],
        cwd=results,
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        output = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise RecordError(
            f"asv publish failed: {output[-1]}",
            where=str(results),
            fix=f"cd {results} && asv publish --config {configuration.name}",
        )
    theirs = (html / OWN).read_text(encoding="utf-8")
    index = json.loads((html / "index.json").read_text(encoding="utf-8"))
    ours = [_entry(html, index, trend, commits) for trend in trends]
    regressions = json.dumps({"regressions": [entry for entry in ours if entry]})
    files.write({html / THEIRS: theirs, html / OWN: regressions})
    beside(html, results)
    return html


def found_by_asv(results: Path) -> frozenset[tuple[str, str]] | None:
    """Return the regressions that asv's detector found when its page was last made.

    Each is a pair (asv's benchmark with its case, machine). Return None if there is no page.
    """
    path = results / HTML / THEIRS
    if not path.is_file():
        return None
    rows = json.loads(path.read_text(encoding="utf-8"))["regressions"]
    return frozenset((row[0], row[1].partition("machine-")[2].partition("/")[0]) for row in rows)


def _entry(html: Path, index: Json, trend: Trend, commits: Mapping[str, str]) -> list[Json] | None:
    """Return a regression in the format of asv's page.

    Return None if the trend is not a regression or has no graph.
    """
    series, last = trend.series, trend.last
    name = benchmark(series.quantity)
    graphs = sorted(html.glob(f"graphs/**/machine-{series.machine}/**/{name}.json"))
    if trend.status is not TrendStatus.REGRESSED or last is None or not graphs:
        return None
    cases = index["benchmarks"][name]["params"][0]
    revisions = {commit: int(n) for n, commit in index["revision_to_hash"].items()}
    before = sorted(v.value for v in series.values[: last.index])
    after = sorted(v.value for v in series.values[last.index :])
    old = before[len(before) // 2]
    new = after[len(after) // 2]
    return [
        f"{name}('{series.case}')",
        str(graphs[0].relative_to(html)),
        {},
        cases.index(repr(series.case)),
        new,
        old,
        [[None, revisions[commits[last.run]], old, new]],
    ]
