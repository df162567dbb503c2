"""A user's files with the names of standard modules are not imported instead of these."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.dialers import agent_command

NAMES = ("secrets", "queue", "code", "select", "numbers", "random", "token", "copy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken for the library')")
    return tmp_path


def test_an_agent_starts_in_a_folder_with_names_of_the_library(folder: Path) -> None:
    command = agent_command((sys.executable,), 0, {}, (), "--help")
    done = subprocess.run(
        command.argv, cwd=folder, env={**os.environ, **command.env}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.startswith("usage: scaleproof jobs join"), done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("engine", ["local", "torchrun"])
def test_a_file_with_a_name_of_the_library_does_not_shadow_it(folder: Path, engine: str) -> None:
    scaleproof = Path(sys.executable).with_name("scaleproof")
    command = [scaleproof, "gate", "--case", "ddp/mlp-nano", "--cpus", "2", "--engine", engine]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "ok    step" in done.stdout, done.stdout + done.stderr
