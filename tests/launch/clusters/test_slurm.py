"""Runs under Slurm: attached, inside an allocation, and detached."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import slurm

CLUSTERS = Path(__file__).parents[3] / "examples" / "cluster"
CLUSTER = "[slurm]\none_machine = true\nlisten = '127.0.0.1'\n"
RUN = ("run", "ddp/mlp-nano/weak", "--engine", "slurm", "--nodes", "2", "--cpus", "2",
       "--no-timeline", "--no-fabric")  # fmt: skip


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    if why := slurm.missing():
        pytest.skip(why)
    with slurm.cluster((2, 2)) as environment:
        yield {**os.environ, **environment, "COLUMNS": "100"}


def scaleproof(env: dict[str, str], *words: str, before: tuple[str, ...] = ()) -> str:
    """Return the output of a command, whose status must be that of a measured case."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "harness", *words], env=env, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return done.stdout


@pytest.mark.full  # a detached run is inside an allocation, too
def test_a_run_inside_an_allocation(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    more = ("--cluster", str(tmp_path / "c.toml"), "--results", str(tmp_path))
    done = scaleproof(env, *RUN, *more, before=("salloc", "-Q", "-N2", "--ntasks-per-node=1"))
    assert "@2x1 " in done and "stand-ins (emulated)" in done, done
    (record,) = tmp_path.glob("runs/*/*/record.json")
    document = json.loads(record.read_text())
    assert document["settings"]["engine"] == "slurm" and len(document["nodes"]) == 2


@pytest.mark.full
def test_a_detached_run_is_watched_and_collected(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    where = ("--results", str(tmp_path))
    done = scaleproof(env, *RUN, "--cluster", str(tmp_path / "c.toml"), *where, "--detach")
    job = done.split()[1]
    deadline = time.monotonic() + 120
    while "over" not in (seen := scaleproof(env, "status", job, *where)):
        assert time.monotonic() < deadline, seen
        early = subprocess.run(
            [sys.executable, "-m", "harness", "jobs", "collect", job, *where], env=env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert early.returncode in (0, 5, 11) and "Traceback" not in early.stderr
    assert "@2x1 " in scaleproof(env, "collect", job, *where)
    (record,) = tmp_path.glob("runs/*/*/record.json")
    document = json.loads(record.read_text())
    assert any(re.fullmatch(r"engine: \d+ s in the queue", note) for note in document["notes"])
    assert "SCALEPROOF_SUBMITTED" not in document["environment"]


@pytest.mark.full
def test_a_detached_run_can_be_cancelled(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER)
    where = ("--results", str(tmp_path))
    done = scaleproof(env, *RUN, "--cluster", str(tmp_path / "c.toml"), *where, "--detach")
    job = done.split()[1]
    assert "is cancelled" in scaleproof(env, "cancel", job, *where)
    assert "over" in scaleproof(env, "status", job, *where)
    queue = subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=False)
    assert queue.stdout.strip() == ""


def test_an_unknown_job_is_a_clear_error(env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "jobs", "cancel", "4711", "--results", str(tmp_path)], env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4 and "was not submitted from here" in done.stderr


#: Fake container tools, which record their call and then execute the command.
_PYXIS = """#!/bin/bash
words=()
for word in "$@"; do
    case "$word" in --container-*) echo "$word" >> {seen} ;; *) words+=("$word") ;; esac
done
exec {srun} "${{words[@]}}"
"""
_CONTAINER = """#!/bin/bash
echo "$0 $*" >> {seen}
while [ "$1" != python3 ]; do shift; done
shift
exec {python} "$@"
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["pyxis", "enroot", "apptainer"])
def test_containers(kind: str, env: dict[str, str], tmp_path: Path) -> None:
    """With the cluster files of ``examples``, every agent starts in its container."""
    seen, tools = tmp_path / "seen", tmp_path / "tools"
    tools.mkdir()
    stubs = {
        "srun": _PYXIS.format(seen=seen, srun=shutil.which("srun")),
        "enroot": _CONTAINER.format(seen=seen, python=sys.executable),
        "apptainer": _CONTAINER.format(seen=seen, python=sys.executable),
        "python3": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
    }
    for name, text in stubs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    example = (CLUSTERS / f"{kind}.toml").read_text().replace('lines = ["--exclusive"]\n', "")
    (tmp_path / "c.toml").write_text(example + CLUSTER.removeprefix("[slurm]\n"))
    there = {**env, "PATH": f"{tools}:{env['PATH']}"}
    more = ("--cluster", str(tmp_path / "c.toml"), "--results", str(tmp_path))
    done = scaleproof(there, *RUN, *more)
    assert "@2x1 " in done, done
    word = "--container-image=" if kind == "pyxis" else "python3 -P -m "
    assert word in seen.read_text()
