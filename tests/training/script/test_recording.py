"""Training runs that record themselves write usual records, which state what was not checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.compare import compare
from harness.analysis.reading import load, pooled, runs_in
from harness.analysis.script import facts
from harness.analysis.verify import verify
from harness.base.errors import Exit, SpecError
from harness.interface.cli.main import main
from harness.interface.report import script
from harness.record import RunRecord, Status
from harness.record.store import load_samples, samples_path

SCRIPT = Path(__file__).parents[2] / "scripts" / "recorded.py"
ROOT = Path(__file__).parents[3]


def told_by(tmp_path: Path, *options: str, ranks: int = 1) -> Any:
    """Run the script and return what it prints about its records."""
    launcher: Sequence[str] = ()
    if ranks > 1:
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    words = [sys.executable, *launcher, str(SCRIPT), "--results", str(tmp_path), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(re.findall(r"^\{.*\}$", done.stdout, re.M)[-1])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return told_by(tmp_path_factory.mktemp("alone"), "--times", "2", "--short", "--breaks")


def test_a_recorded_training_run_has_a_usual_record(alone: Any) -> None:
    first = Path(alone["runs"][0])
    run = load(first)
    (launch,) = run.launches
    assert launch.usable and launch.steps is not None, launch.wrong
    assert (launch.steps.count, launch.consumed) == (12, 12 * 8)
    assert {v.status for v in run.verdicts} == {Status.RECORDED}
    verified = verify(run, first)
    assert verified.differences == () and verified.num_links == 5
    shown = " ".join(" ".join(script.lines(run, 80)).split())
    assert (
        "not checked scaling (one launch of one world: there is nothing to compare with)" in shown
    )


@pytest.mark.parametrize(
    ("column", "name"), [("drawn", "drawn"), ("backwards", "backwards"), ("reads", "reads")]
)
def test_events_that_were_changed_no_longer_give_the_facts(
    alone: Any, column: str, name: str, tmp_path: Path
) -> None:
    """As if the digest of the samples and the chain had been rebuilt."""
    folder = Path(shutil.copytree(Path(alone["runs"][0]), tmp_path / "run"))
    run = load(folder)
    (launch,) = run.launches
    (rank,) = launch.ranks
    samples = load_samples(folder, launch.launch, rank)
    assert samples.cycles is not None
    samples.cycles[:, facts.CYCLE.index(column)] += 1 + np.arange(len(samples.cycles))
    path = samples_path(folder, launch.launch, rank.rank)
    np.savez(path, **{name: array for name, array in vars(samples).items() if array is not None})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edited = replace(launch, ranks=(replace(rank, samples_sha256=digest),))
    found = verify(replace(run, launches=(edited,)), folder).differences
    assert f"{launch.launch}: {name} of rank 0 differs from its samples" in found


def test_a_window_can_be_measured_again_in_the_same_process(alone: Any) -> None:
    """A notebook's cell can be run again, because the first window leaves nothing behind."""
    assert len(set(alone["runs"][:2])) == 2 and alone["as_before"]


def test_a_training_run_that_ends_too_early_is_reported_and_continues(alone: Any) -> None:
    run = load(Path(alone["runs"][2]))
    (launch,) = run.launches
    why = "the script ended after 6 of the 17 steps wanted"
    assert launch.cause is not None and launch.cause.message == why
    assert alone["said"] == [f"measure_steps: {why}"]
    assert {v.status for v in run.verdicts} == {Status.ERROR}
    assert verify(run, Path(alone["runs"][2])).differences == ()


def test_a_failed_training_run_has_a_record_only_if_its_window_is_complete(alone: Any) -> None:
    assert alone["runs"][3] == "None"
    assert load(Path(alone["runs"][4])).launches[0].usable


def test_recorded_starts_in_a_folder_are_compared_as_launches(
    alone: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [load(Path(alone["runs"][i])) for i in (0, 1, 4)]
    both = pooled(every[:2])
    (row,) = compare(both, replace(both, run="other"), "throughput").rows
    assert row.low is not None and row.high is not None, "an interval, over launches"
    assert pooled(every[:1]) is every[0]
    results = Path(alone["runs"][0]).parents[2]
    assert len(runs_in(results)) == 4 and runs_in(Path(alone["runs"][0])) == [
        Path(alone["runs"][0])
    ]
    status = main(["compare", str(results), str(results), "--metric", "throughput"])
    assert status == Exit.PASSED and "A and B are the same run" in capsys.readouterr().out


def test_runs_with_blocks_are_not_pooled(sample: RunRecord) -> None:
    with pytest.raises(SpecError, match="not a start that a training recorded by itself"):
        pooled([sample, sample])


@pytest.fixture
def sample() -> RunRecord:
    return load(ROOT / "results" / "samples" / "ddp-nano")


def test_starts_with_different_software_are_not_pooled(alone: Any) -> None:
    run = load(Path(alone["runs"][0]))
    newer = replace(run, software={**run.software, "torch": "9.9"})
    with pytest.raises(SpecError, match=r"torch: .* \| 9.9"):
        pooled([run, newer])


@pytest.mark.parametrize("window", [{"steps": 1}, {"warm_up": 0}])
def test_a_window_without_steps_or_warm_up_is_refused(window: dict[str, int]) -> None:
    from harness import measure_steps

    with pytest.raises(ValueError, match="at least 2 steps are timed"), measure_steps(**window):
        raise AssertionError


@pytest.mark.full
def test_every_rank_is_in_the_record(tmp_path: Path) -> None:
    record = told_by(tmp_path, ranks=2)
    run = load(Path(record["runs"][0]))
    (launch,) = run.launches
    assert launch.usable and [r.rank for r in launch.ranks] == [0, 1], launch.wrong
    assert launch.consumed == 12 * 2 * 8
    assert [(r.node, r.local_rank) for r in launch.ranks] == [(0, 0), (0, 1)]
    assert verify(run, Path(record["runs"][0])).differences == ()


@pytest.mark.full
def test_a_rank_that_was_not_observed_is_named(tmp_path: Path) -> None:
    record = told_by(tmp_path, "--fails", "1", ranks=2)
    cause = load(Path(record["runs"][0])).launches[0].cause
    assert cause is not None and cause.rank == 1 and "stored no results within" in cause.message


@pytest.mark.full
def test_a_recording_script_can_be_measured_by_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the file is measured by a scaling sweep, it writes no record itself."""
    (tmp_path / "train.py").write_text(SCRIPT.read_text())
    monkeypatch.chdir(tmp_path)
    words = ["run", "--script", "--cpus", "2", "--no-fabric", "--no-timeline", "--steps", "8"]
    words += ["--warm-up", "2", "--results", "there", "--json", "--", "train.py", "--results", "x"]
    main([*words, "--times", "100"])
    run = json.loads(capsys.readouterr().out)
    assert [x for x in run["launches"] if not x["wrong"] and not x["cause"]]
    assert not [x for x in run["launches"] if x["wrong"] or x["cause"]]
