"""``pytest suites/`` on this machine ends with verdicts, and ``verify`` accepts its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "least"),
    [
        (("-k", "test_weak and ddp", "--time-budget", "90"), 1),
        pytest.param((), 12, marks=pytest.mark.full),
    ],
)
def test_the_main_job_ends_with_verdicts_and_a_record_that_verifies(
    tmp_path: Path, options: tuple[str, ...], least: int
) -> None:
    """A noisy machine may give FAIL or INCONCLUSIVE, but no verdict at all, or an ERROR, is a bug.

    CI runs one real sweep for at most 90 s; the whole suite takes six minutes or more.
    On two cores, thresholds judge 12 of its arms (``scaleproof run plan suites --cpus 2``).
    """
    arguments = [
        "suites/",
        *options,
        "--results",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "SCALEPROOF_NO_TIMELINE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1, 10), done.stdout[-6000:] + done.stderr
    (path,) = tmp_path.glob("runs/*/*/record.json")
    run = json.loads(path.read_text())
    statuses = [v["status"] for v in run["verdicts"]]
    assert run["complete"] and "ERROR" not in statuses
    assert not [note for note in run["notes"] if "broke" in note]
    assert options or run["fabric"], "a short budget has no room for a sweep"
    assert sum(s in ("PASS", "FAIL", "INCONCLUSIVE") for s in statuses) >= least
    profiled = [x for x in run["launches"] if x["purpose"] == "profile"]
    timed = {x["case"] for x in run["launches"] if x["purpose"] == "timed"}
    assert {x["case"] for x in profiled} == timed and all(x["budget"] for x in profiled)
    reads = [v["value"] for v in run["verdicts"] if v["metric"] == "efficiency"]
    lost = any(value is not None and value < 0.9 for value in reads)
    assert "\n lost    " in done.stdout or not lost
    strategies = {a["case"]["strategy"] for p in run["plans"] for a in p["arms"]}
    every = {"single", "ddp", "fsdp", "pipeline", "compressed"}
    assert strategies == ({"single", "ddp"} if options else every)
    assert " page    " in done.stdout and " all     scaleproof report " in done.stdout
    verified = subprocess.run(
        [sys.executable, "-m", "harness", "verify", str(path.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout
