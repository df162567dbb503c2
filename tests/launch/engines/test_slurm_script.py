"""Batch scripts and job steps of Slurm give ranks the cores that they need."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import SpecError
from harness.cases import Device
from harness.interface.cli.main import main
from harness.launch.engine import Deployment
from harness.launch.engines import slurm

ROOT = Path(__file__).parents[3]
CLUSTERS = ROOT / "examples" / "cluster"


def deployment(device: Device, folder: Path, **settings: Any) -> Deployment:
    asked = {**slurm.SETTINGS, **settings}
    return Deployment(
        nodes=(8, 8), device=device, join="10.0.0.1:4000", token_file=folder / "token",
        folder=folder, python=("python3",), settings=asked,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "settings", "job", "step"),
    [
        (Device.CUDA, {}, ["--gpus-per-node=8", "--exclusive"], "--cpu-bind=none"),
        (Device.CUDA, {"tasks": "rank"}, ["--exclusive"], "--cpu-bind=none"),
        (Device.CUDA, {"lines": ["--cpus-per-gpu=14"]}, ["--cpus-per-gpu=14"], "--cpu-bind=none"),
        (Device.CUDA, {"cpus": 14}, ["--cpus-per-task=112"], "--cpu-bind=none"),
        (Device.CUDA, {"cpus": 14, "tasks": "rank"}, ["--cpus-per-task=14"], "--cpus-per-task=14"),
        (Device.CPU, {}, ["--cpus-per-task=8"], "--cpu-bind=none"),
        (Device.CPU, {"tasks": "rank"}, ["--cpus-per-task=1"], "--cpus-per-task=1"),
    ],
)
def test_ranks_get_their_cores(
    device: Device, settings: dict[str, Any], job: list[str], step: str, tmp_path: Path
) -> None:
    """By default, Slurm binds a task to one CPU, however many GPUs it has."""
    asked = deployment(device, tmp_path, **settings)
    text = slurm.script(asked, ["agent"])
    for option in job:
        assert f"#SBATCH {option}\n" in text
    assert f" {step} agent" in text
    per_task = [line for line in text.splitlines() if "--cpus-per-task" in line]
    assert not ("--exclusive" in job and per_task), "whole nodes, and no fewer CPUs of them"


def test_a_step_in_an_allocation_has_the_same_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (command,) = slurm.build().plan(deployment(Device.CUDA, tmp_path))
    assert "--cpu-bind=none" in command.argv and "--exclusive" not in command.argv


@pytest.mark.parametrize(("tasks", "second"), [("node", 1), ("rank", 8)])
def test_every_component_of_a_step_states_its_number_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, second: int
) -> None:
    """srun of Slurm 24.11 would otherwise use SLURM_NTASKS of the first component for all."""
    asked = replace(deployment(Device.CPU, tmp_path, tasks=tasks), nodes=(4, 4, 8))
    first = 2 if tasks == "node" else 8
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (command,) = slurm.build().plan(asked)
    for words in (slurm.script(asked, ["agent"]).split(), list(command.argv)):
        start = words.index("srun")
        sizes = [word for word in words[start:] if word.startswith(("--het", "--ntasks=", "--nod"))]
        assert sizes == [
            "--het-group=0", "--nodes=2", f"--ntasks={first}",
            "--het-group=1", "--nodes=1", f"--ntasks={second}",
        ]  # fmt: skip
        assert words[start:].count(":") == 1


def test_a_folder_with_spaces_is_one_word_of_the_script(tmp_path: Path) -> None:
    text = slurm.script(deployment(Device.CPU, tmp_path / "my results"), ["true"])
    assert f'#SBATCH --output="{tmp_path}/my results/slurm.log"' in text


def test_a_setting_cannot_add_lines_to_the_script(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="control character"):
        slurm.script(deployment(Device.CPU, tmp_path, partition="gpu\ntouch /tmp/x"), ["true"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("#SBATCH --exclusive", "not an option of sbatch"),
        ("exclusive", "not an option of sbatch"),
        ("--nodes=4", "where ranks run"),
        ("-N 4", "where ranks run"),
        ("--ntasks-per-node=8", "where ranks run"),
    ],
)
def test_lines_may_not_change_the_placement_of_ranks(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        slurm.script(deployment(Device.CPU, tmp_path, lines=[line]), ["true"])
    text = slurm.script(deployment(Device.CPU, tmp_path, account="my team"), ["true"])
    assert '#SBATCH --account="my team"' in text


def test_a_detached_dry_run_prints_the_script_and_submits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "asked"
    for name in ("sbatch", "srun", "sinfo"):
        stub = tmp_path / name
        stub.write_text(f"#!/bin/sh\necho {name} >> {asked}\necho 7\n")
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = ["run", "ddp/mlp-nano/weak", "--engine", "slurm", "--nodes", "2x1", "--cpus", "2"]
    results = str(tmp_path / "out")
    assert main([*words, "--results", results, "--detach", "--dry-run"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash") and "srun" not in script.splitlines()[-1]
    (command,) = [line for line in script.splitlines() if line.startswith("exec ")]
    assert command.count("--results") == 1 and "--detach" not in command
    assert "--dry-run" not in command and "HOST:PORT" not in script
    assert not asked.exists() or "sbatch" not in asked.read_text()


@pytest.mark.parametrize(
    ("engine", "begins"), [("slurm", "# FOLDER/job.sbatch"), ("ray", "# bundle 0 of ")]
)
def test_a_dry_run_needs_no_scheduler_and_no_package(
    engine: str, begins: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator can read the request to a cluster on a laptop."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["run", "ddp/mlp-nano/weak", "--engine", engine, "--nodes", "2x4", "--gpus", "8"]
    assert main([*words, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(begins) and "HOST:PORT" in printed


@pytest.mark.parametrize("kind", ["pyxis", "enroot", "apptainer"])
def test_a_dry_run_of_containers_is_golden(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch script of each cluster file of ``examples`` equals the golden file."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    words = ["run", "ddp/decoder-350m/weak", "--engine", "slurm", "--nodes", "2x8", "--gpus", "16"]
    assert main([*words, "--cluster", str(CLUSTERS / f"{kind}.toml"), "--dry-run"]) == 0
    seen = capsys.readouterr().out.replace(str(ROOT), "ROOT")
    golden = ROOT / "tests" / "golden" / f"slurm-{kind}.txt"
    if os.environ.get("GOLDEN_SCREENS") == "write":
        golden.write_text(seen)
    assert seen == golden.read_text()
