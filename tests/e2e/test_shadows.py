"""Files of the user's with the names of Python's own: nobody takes them for the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("secrets", "queue", "code", "select", "numbers", "random", "token", "copy")


@pytest.mark.parametrize("engine", ["local", pytest.param("torchrun", marks=pytest.mark.full)])
def test_a_file_with_a_name_of_the_library_is_not_taken_for_it(tmp_path: Path, engine: str) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken for the library')")
    scaleproof = Path(sys.executable).with_name("scaleproof")
    command = [scaleproof, "gate", "--case", "ddp/mlp-nano", "--cpus", "2", "--engine", engine]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ok    step" in done.stdout, done.stdout + done.stderr
