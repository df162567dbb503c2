"""Figures of an ingested run as asv tracks: lower is better, one parameter per case.

``scaleproof ingest`` writes the same values without starting asv's runner; these exist so that
``asv check`` and ``asv run`` work for people who expect them. SCALEPROOF_RECORD names the run;
without it, the last one that was ingested is read.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from harness.analysis.history import asv
from harness.analysis.history.latest import latest_run
from harness.record import RunRecord
from harness.record.store import load

RESULTS = Path(__file__).parents[1] / "results"


@functools.cache
def record() -> RunRecord | None:
    """The run to read; None when nothing was ingested yet."""
    named = os.environ.get("SCALEPROOF_RECORD")
    folder = Path(named) if named else latest_run(RESULTS)
    return None if folder is None else load(folder)


def cases(benchmark: str) -> list[str]:
    """The cases of the record that have this figure."""
    run = record()
    found = sorted(asv.figures(run)[benchmark]) if run else []
    return found or ["no run was ingested"]


def value(benchmark: str, case: str) -> float:
    """A figure; an error, never a silent gap, without a record."""
    run = record()
    if run is None:
        raise RuntimeError("no run was ingested: scaleproof ingest results/runs/*/*")
    if unstored():
        raise RuntimeError(
            "asv would store nothing: add --set-commit-hash"
            " $(git --git-dir results/axis.git rev-parse main)"
        )
    return asv.value_of(run, benchmark, case)


def unstored() -> bool:
    """Whether an ``asv run`` above us lacks --set-commit-hash: it would drop what it measured."""
    pid = os.getppid()
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "run" in words and any(Path(w).name == "asv" for w in words[:2]):
            return not any(w.startswith(("--set-commit-hash", "--dry-run", "-n")) for w in words)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def track_step_time(case: str) -> float:
    """Mean of the launches' median steps, in seconds."""
    return value("records.track_step_time", case)


def track_scaling_loss(case: str) -> float:
    """1 - efficiency against plain."""
    return value("records.track_scaling_loss", case)


def track_peak_memory(case: str) -> float:
    """Peak memory of the fullest rank, in bytes."""
    return value("records.track_peak_memory", case)


def track_wire_bytes(case: str) -> float:
    """Bytes that a rank sends in a step."""
    return value("records.track_wire_bytes", case)


for _name, _unit in asv.BENCHMARKS.items():
    _function = globals()[_name.removeprefix("records.")]
    _function.unit = _unit
    _function.version = asv.VERSION
    _function.params = [cases(_name)]
    _function.param_names = ["case"]
    _function.pretty_name = _name.split(".track_")[1].replace("_", " ")
