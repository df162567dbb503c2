"""The shipped ways to start a nightly run, each as its scheduler starts it, from a fresh clone."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from harness.features.history.night import keep, nights
from tests.nights import CASE, night

ROOT = Path(__file__).parents[3]
NIGHTLY = ROOT / "examples/nightly"
#: A stub in place of the command, which records its arguments and its folder.
STUB = '#!/bin/sh\necho "$(basename "$0") $* in $PWD" >> "$HOME/called"\nmkdir -p results\n'
ASKED = "scaleproof history nightly --config examples/nightly/nightly.toml in {clone}"


def sh(command: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home folder with a clone whose virtual environment is a stub."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "examples/nightly"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    clone = tmp_path / "scaleproof"
    for name in tracked:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    (clone / ".gitignore").write_text("results/\n.venv/\n")
    (clone / ".venv/bin").mkdir(parents=True)
    for stub in (clone / ".venv/bin/scaleproof", tmp_path / "bin/sbatch"):
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(STUB)
        stub.chmod(0o755)
    sh("git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm x", clone)
    sh(
        f"git clone -q --bare {clone} origin && git -C {clone} remote add origin $PWD/origin",
        tmp_path,
    )
    return tmp_path


def called(home: Path) -> list[str]:
    return (home / "called").read_text().splitlines()


def test_the_crontab_starts_the_nightly_run(home: Path) -> None:
    (line,) = (x for x in (NIGHTLY / "crontab").read_text().splitlines() if x[0] != "#")
    fields = line.split(maxsplit=5)
    assert all(re.fullmatch(r"[\d*]+", field) for field in fields[:5])
    sh(fields[5], home, HOME=str(home))
    assert called(home) == [ASKED.format(clone=home / "scaleproof")]


def test_the_systemd_unit_starts_the_nightly_run(home: Path) -> None:
    unit = (NIGHTLY / "scaleproof-nightly.service").read_text().replace("%h", str(home))
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    subprocess.run(
        shlex.split(settings["ExecStart"]), cwd=settings["WorkingDirectory"], check=True,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    assert called(home) == [ASKED.format(clone=home / "scaleproof")]
    if tool := shutil.which("systemd-analyze"):
        subprocess.run(
            [tool, "verify", "--man=no", str(NIGHTLY / "scaleproof-nightly.timer")], check=True
        )


def test_slurm(home: Path) -> None:
    clone = home / "scaleproof"
    script = clone / "examples/nightly/nightly.sbatch"
    path = f"{home}/bin:{os.environ['PATH']}"
    sh(f"bash {script}", home, HOME=str(home), PATH=path, SLURM_SUBMIT_DIR=str(clone))
    again, night_ = called(home)
    assert again == f"sbatch --begin=tomorrow 02:05 {script} in {clone}"
    assert night_ == ASKED.format(clone=clone)


def test_the_github_workflow_stores_nightly_runs_on_a_branch(home: Path) -> None:
    clone = home / "scaleproof"
    job = yaml.safe_load((NIGHTLY / "github.yml").read_text())["jobs"]["nightly"]
    steps = [s["run"] for s in job["steps"] if "run" in s and "pip install" not in s["run"]]
    assert len(steps) == 3
    for number in range(2):  # These are two nightly runs on runners without a persistent disk.
        for step in steps:
            sh(step, clone, HOME=str(home))
            if "nightly.toml" in step:
                keep(night(number, {CASE: 0.1}), clone / "results")
                sh(steps[-1], clone, HOME=str(home))
        shutil.rmtree(clone / "results")
    sh(steps[0], clone, HOME=str(home))
    assert [n.run for n in nights(clone / "results")] == [night(i, {}).run for i in range(2)]


def test_two_runners_that_save_at_once_lose_no_nightly_run(home: Path) -> None:
    runners = []
    for number in range(2):
        runner = home / f"runner{number}"
        sh(f"git clone -q {home}/origin {runner}", home)
        shutil.copytree(ROOT / "examples/nightly", runner / "examples/nightly", dirs_exist_ok=True)
        keep(night(number, {CASE: 0.1}), runner / "results")
        runners.append(runner)
    words = ["sh", "examples/nightly/history-branch.sh", "save"]
    saving = [subprocess.Popen(words, cwd=r) for r in runners]
    assert [p.wait() for p in saving] == [0, 0]
    sh("sh examples/nightly/history-branch.sh load", runners[0])
    assert len(nights(runners[0] / "results")) == 2


def test_the_notify_command_reads_the_document(home: Path) -> None:
    document = '{"night": "n", "headline": "h", "news": [{"status": "regressed", "case": "c",'
    document += ' "figure": "step time", "change": "+5%", "why": "torch"}]}'
    clone = home / "scaleproof"
    sh(f"mkdir results; echo {shlex.quote(document)} | examples/nightly/notify.sh", clone)
    assert (clone / "results/told.log").read_text().splitlines()[1] == (
        "  regressed c step time +5% torch"
    )
