"""``jobs attach`` inspects a running job without disturbing it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harness.analysis.stacks import OTHER, Frame, activity, own_line, tally
from harness.interface.cli.main import main

LOOP = Path(__file__).parents[2] / "scripts" / "loop.py"
TORCH = "/v/lib/python3.11/site-packages/torch/"
INNER = {
    "backward": Frame("backward", TORCH + "autograd/__init__.py", 1),
    "optimizer": Frame("step", TORCH + "optim/optimizer.py", 1),
    "forward": Frame("_call_impl", TORCH + "nn/modules/module.py", 1),
    "communication": Frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 1),
    "data": Frame("__next__", TORCH + "utils/data/dataloader.py", 1),
}
MINE = Frame("main", "/home/me/train.py", 42)


@given(name=st.sampled_from(sorted(INNER)), outer=st.sampled_from(sorted(INNER)))
def test_the_innermost_recognized_frame_determines_the_activity(name: str, outer: str) -> None:
    stack = [Frame("relu", TORCH + "nn/functional.py", 1), INNER[name], INNER[outer], MINE]
    assert activity(stack) == name and own_line(stack) == "/home/me/train.py:42"
    assert activity([MINE]) == OTHER


def test_sampled_stacks_are_counted() -> None:
    seen = tally([[INNER["data"], MINE], [INNER["data"], MINE], [MINE]])
    assert seen.seen == {"data": 2, OTHER: 1} and seen.count == 3


@pytest.mark.skipif(not os.access("/proc/1/environ", os.R_OK), reason="may not trace processes")
def test_an_inspected_job_continues(capsys: pytest.CaptureFixture[str]) -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "3"}
    command = [sys.executable, str(LOOP), "--mistake", "wrong world", "--epochs", "1000000"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and "step" in job.stdout.readline()
        assert main(["jobs", "attach", str(job.pid), "--seconds", "1", "--json"]) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        assert rank["pid"] == job.pid and rank["cores"] > 0.1
        assert any("loop.py" in line for line in rank["activity"]["lines"])
        assert main(["jobs", "attach", str(os.getpid()), "--seconds", "1"]) == 0
        screen = capsys.readouterr().out
        assert "2 more ranks run on other machines" in screen and "this is no verdict" in screen
        assert job.poll() is None
        job.kill()


def test_a_process_that_is_no_training_job_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "attach", "999999999"]) == 4
    assert "no process 999999999 here" in capsys.readouterr().err
    assert main(["jobs", "attach", "0"]) == 4
    with subprocess.Popen(["sleep", "60"], env={}) as idle:
        assert main(["jobs", "attach", str(idle.pid)]) == 4
        idle.kill()
    assert "has a RANK" in capsys.readouterr().err
