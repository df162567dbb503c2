"""The acceptance for the first machine with a GPU: its steps run on two CPU ranks, as a rehearsal."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_acceptance"


@pytest.mark.parametrize(
    "steps",
    [
        ["timeline", "recorder"],
        pytest.param(["facts", "fork", "gates", "truth", "memory"], marks=pytest.mark.full),
        pytest.param(["faults", "suite"], marks=pytest.mark.full),
    ],
    ids=lambda steps: "-".join(steps),
)
def test_a_rehearsal_passes_and_says_what_it_could_not_check(
    tmp_path: Path, steps: list[str]
) -> None:
    command = [sys.executable, str(SCRIPT), "--dry", "--out", str(tmp_path), "--only", *steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for step in steps:
        checks = json.loads((tmp_path / step / "checks.json").read_text())
        assert checks and not any(c["ok"] is False for c in checks)
        untold = [c["what"] for c in checks if c["ok"] is None]
        assert all(f"not checked: {what}" in done.stdout for what in untold)


def test_a_step_that_breaks_fails_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a machine where something is missing: no checks are not a success."""
    script = runpy.run_path(str(SCRIPT / "__main__.py"))
    script["STEPS"]["nothing"] = "there is no such step"
    name, result, _, told = script["_run"]("nothing", tmp_path, dry=True)
    assert (name, result) == ("nothing", "FAIL") and "it broke" in told[0]
