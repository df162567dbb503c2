"""Tests of the acceptance script for GPUs on a simulated device."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_acceptance"


def rehearsed(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--dry", "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(["first", "nccl"], marks=pytest.mark.full),
        pytest.param(["kept", "cache", "frameworks", "warm", "nsys"], marks=pytest.mark.full),
        pytest.param(["facts", "gates", "truth"], marks=pytest.mark.full),
        pytest.param(["repeatable", "memory", "profile", "suite"], marks=pytest.mark.full),
        pytest.param(["broken", "strategies"], marks=pytest.mark.full),
        pytest.param(["shared"], marks=pytest.mark.full),
    ],
    ids=lambda steps: "-".join(steps),
)
def test_a_rehearsal_passes_and_lists_checks_that_it_could_not_make(
    tmp_path: Path, steps: list[str]
) -> None:
    done = rehearsed(tmp_path, "--only", *steps)
    assert done.returncode == 0, done.stdout
    known = json.loads((tmp_path / "checks.json").read_text())
    assert list(known) == steps and {s["result"] for s in known.values()} == {"PASS"}
    for step in known.values():
        assert step["checks"] and not any(c["ok"] is False for c in step["checks"])
        untold = [c["what"] for c in step["checks"] if c["ok"] is None]
        assert all(f"not checked: {what}" in done.stdout for what in untold)
    with tarfile.open(tmp_path / "evidence.tar") as tar:
        assert {name.split("/")[0] for name in tar.getnames()} == set(steps)


@pytest.mark.full
def test_steps_beyond_the_budget_are_listed_and_can_be_resumed(tmp_path: Path) -> None:
    done = rehearsed(tmp_path, "--only", "facts", "first", "--budget", "40")
    assert done.returncode == 10 and "no time was left for first" in done.stdout, done.stdout
    assert "--resume --out" in done.stdout
    again = rehearsed(tmp_path, "--only", "facts", "first", "--resume")
    assert again.returncode == 0 and " facts:" not in again.stdout, again.stdout
    assert list(json.loads((tmp_path / "checks.json").read_text())) == ["facts", "first"]


@pytest.mark.full
def test_a_step_that_breaks_fails_and_is_told(tmp_path: Path) -> None:
    """A step without checks is not a success, for example on a machine without a package."""
    script = runpy.run_path(str(SCRIPT / "__main__.py"))
    result, _, sentences = script["_run"](
        "nothing", tmp_path, 30, {"PYTHONPATH": str(SCRIPT.parents[1])}, True
    )
    assert result == "FAIL" and "it failed" in sentences[0]


def test_what_nobody_knows_yet_fits_into_the_first_ten_minutes() -> None:
    """The first steps fit into ten minutes; later steps wait for ``--resume``."""
    script = runpy.run_path(str(SCRIPT / "__main__.py"))
    seconds = [usual_s + script["BETWEEN_S"] for usual_s, _, _ in script["STEPS"].values()]
    assert sum(seconds[:6]) <= 580 and list(script["STEPS"])[:3] == ["facts", "first", "suite"]
    assert all(usual_s < limit_s for usual_s, limit_s, _ in script["STEPS"].values())
