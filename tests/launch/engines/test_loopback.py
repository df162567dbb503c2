"""A machine without a loopback interface is reported at once, not after every rank's deadline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
def test_a_machine_without_loopback_is_reported(tmp_path: Path) -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace may be made here")
    words = [
        sys.executable,
        "-m",
        "harness",
        "check",
        "nodes",
        "--case",
        "ddp/mlp-nano",
        "--cpus",
        "2",
    ]
    done = subprocess.run(
        [*alone, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "loopback interface (127.0.0.1) cannot be reached" in done.stdout
