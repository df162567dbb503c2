"""Figures of an ingested run as asv tracks: lower is better, one parameter per case.

``scaleproof ingest`` writes the same values, with their spread, without starting asv's runner;
these exist so that ``asv check`` and ``asv run`` work for people who expect them.
SCALEPROOF_RECORD names the run; without it, asv says which commit of the ledger is meant.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from harness.analysis.history import asv
from harness.analysis.history.latest import run_of
from harness.record import RunRecord
from harness.record.store import load

RESULTS = Path(__file__).parents[1] / "results"


@functools.cache
def record() -> RunRecord | None:
    """The run to read; None when nothing was ingested yet, or its record is gone."""
    named = os.environ.get("SCALEPROOF_RECORD")
    folder = Path(named) if named else run_of(RESULTS, os.environ.get("ASV_COMMIT", "main"))
    return None if folder is None else load(folder)


def cases(benchmark: str) -> list[str]:
    """The cases of the record that have this figure."""
    run = record()
    found = sorted(asv.figures(run)[benchmark]) if run else []
    return found or ["no run was ingested"]


def setup(case: str) -> None:
    """Commits without a record are n/a: the first one, and those whose run is gone."""
    if record() is None:
        raise NotImplementedError


def value(benchmark: str, case: str) -> float:
    """A figure of the record of asv's commit."""
    run = record()
    assert run is not None, "see setup"
    return asv.value_of(run, benchmark, case)


def track_step_time(case: str) -> float:
    """Mean step of a launch, in seconds: the geometric mean over launches."""
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
