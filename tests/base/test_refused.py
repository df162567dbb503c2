"""Errors of the operating system are reported in words with a fix, never as a bare errno."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.interface.cli.main import main


def test_a_file_as_results_folder_is_refused(
    tmp_path: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    results.write_text("mine")
    assert main(["history", "add", str(sample), "--results", str(results)]) == 4
    error = capsys.readouterr().err
    assert "this is a file" in error and "--results another/folder" in error
    assert "Errno" not in error and results.read_text() == "mine"


def test_a_deleted_working_folder_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os; os.rmdir({str(gone)!r}); from harness.interface.cli.main import main; " \
        "raise SystemExit(main(['run', 'ddp/mlp-nano', '--cpus', '1']))"  # fmt: skip
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=gone, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "no longer exists" in done.stderr and "Errno" not in done.stderr
