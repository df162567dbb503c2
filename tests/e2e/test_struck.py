"""If a rank is killed once, the run continues, and reports it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STRATEGY = '''
"""DDP whose rank 1 is killed in the first launch for PURPOSE, or in every one."""

import os
import signal
from pathlib import Path

from harness.training.strategies import ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict()


def expect(case, model, batching, facts, knobs):
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


def build(model, ctx, knobs):
    struck = Path(__file__).with_suffix(".struck")
    if ctx.rank == 1 and ("always" in "HOW" or not struck.exists()):
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ddp.build(model, ctx, ddp.KNOBS)
'''


def run(folder: Path, *options: str, how: str = "once") -> tuple[int, dict[str, Any], str]:
    (folder / "own").mkdir()
    (folder / "own/mine.py").write_text(STRATEGY.replace("HOW", how))
    command = [
        sys.executable, "-m", "harness", "run", "mine/mlp-nano/weak", "--cpus", "2", "--path",
        "own", "--no-timeline", "--no-fabric", *options,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    (record,) = folder.glob("results/runs/*/*/record.json")
    return done.returncode, json.loads(record.read_text()), done.stdout + done.stderr


@pytest.mark.full
def test_a_rank_killed_once_in_its_gate_does_not_end_the_run(tmp_path: Path) -> None:
    status, record, text = run(tmp_path)
    flaked = [x for x in record["launches"] if x["purpose"] == "flaked"]
    assert [x["intended"] for x in flaked] == ["gate"], text
    assert any(note.endswith("launched once more") for note in record["notes"])
    assert status != 11 and record["complete"], text


@pytest.mark.full
def test_a_rank_killed_every_time_is_an_error(tmp_path: Path) -> None:
    status, record, text = run(tmp_path, how="always")
    assert status == 11 and record["complete"], text
    purposes = [x["purpose"] for x in record["launches"] if x["status"] == "failed"]
    assert purposes == ["flaked", "gate"], "one repeat, and then it is an error of the case"
