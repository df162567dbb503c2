"""A user's file is edited during a run, or before the run is resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from harness.host import machine
from harness.measure import run as resume
from harness.measure.run import unfinished
from harness.record import RunRecord

T = TypeVar("T")
STRATEGY = '''
"""DDP, with a neighbour."""

import helper

from harness.training.strategies import ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict()
expect = ddp.expect


def build(model, ctx, knobs):
    return ddp.build(model, ctx, {**ddp.KNOBS, **helper.KNOBS})
'''
COMMAND = [
    sys.executable, "-m", "harness", "run", "mine/mlp-nano/weak", "--cpus", "2", "--path", "own",
    "--no-timeline",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text(STRATEGY)
    (tmp_path / "own/helper.py").write_text("KNOBS = {}\n")
    return tmp_path


def launched(folder: Path, purpose: str) -> list[Path]:
    chains = folder.glob("results/runs/*/*/chain.jsonl")
    return [c for c in chains if f'"purpose":"{purpose}"' in c.read_text()]


def until(process: subprocess.Popen[str], there: Callable[[], list[Path]]) -> Path:
    while not (paths := there()):
        assert process.poll() is None, process.communicate()
    return paths[0]


def started(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def refused_once_edited(folder: Path, name: str, says: str) -> None:
    """Assert that editing a file after the first timed launch is an ERROR that names the file."""
    with started(folder) as process:
        chain = until(process, lambda: launched(folder, "timed"))
        (folder / "own" / name).write_text("KNOBS = {}  # faster\n")
        out, _ = process.communicate()
    run = json.loads((chain.parent / "record.json").read_text())
    details = {v["detail"] for v in run["verdicts"] if v["status"] == "ERROR"}
    assert any(says in detail for detail in details), out
    assert process.returncode == 11


@pytest.mark.full
def test_a_file_that_is_edited_while_a_run_goes_on_is_an_error(folder: Path) -> None:
    """Each launch loads the file again, so the timed code would differ from the checked one."""
    refused_once_edited(folder, "helper.py", "own/helper.py was changed between")


@pytest.mark.full
def test_an_executed_text_edited_during_a_run_is_an_error(folder: Path) -> None:
    """The text is not a module, but its execution is recorded."""
    executes = (
        'exec((Path(__file__).parent / "helper.txt").read_text(), helper.__dict__)\n\n\ndef b'
    )
    text = STRATEGY.replace("import helper", "from pathlib import Path\n\nimport helper")
    (folder / "own/mine.py").write_text(text.replace("def b", executes))
    (folder / "own/helper.txt").write_text("KNOBS = {}\n")
    refused_once_edited(folder, "helper.txt", "own/mine.py, text 1 was changed between")


@pytest.mark.full
def test_a_run_is_not_gone_on_with_when_its_files_were_edited(folder: Path) -> None:
    with started(folder) as process:
        run = until(process, lambda: launched(folder, "timed")).parent
        process.kill()
    before = (folder / "own/helper.py").read_text()
    (folder / "own/helper.py").write_text(before + "# faster\n")
    words = [sys.executable, "-m", "harness", "run", "--resume", str(run)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 4 and "own/helper.py was edited since the run was begun" in done.stderr
    )
    (folder / "own/helper.py").write_text(before)
    os.chdir(folder)
    assert unfinished(run, machine.detect()).launches


def test_another_torch_is_another_run(
    sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run cannot be resumed by an interpreter with another torch."""
    now = {**machine.software(), "torch": "9.9"}
    monkeypatch.setattr(resume, "software", lambda: now)
    (why, *_) = resume._edited(sample_run)
    assert why.startswith("torch is 9.9, and was ")


def test_another_scaleproof_is_another_run(
    sample_run: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run cannot be resumed by an edited scaleproof."""
    monkeypatch.setattr(resume, "software", lambda: dict(sample_run.software))
    monkeypatch.setattr(resume, "recorded", lambda: dict(sample_run.environment))
    first = sample_run.launches[0]
    ranks = [dataclasses.replace(r, sources={"scaleproof": "0" * 16}) for r in first.ranks]
    run = dataclasses.replace(
        sample_run, launches=(dataclasses.replace(first, ranks=tuple(ranks)),)
    )
    assert list(resume._edited(sample_run)) == []
    assert list(resume._edited(run)) == ["scaleproof was changed"]
