"""What a cluster's operator copies works: the scripts pass on what the command says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.host import machine

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"


def run(script: str, folder: Path, status: int) -> tuple[int, str]:
    """A script with a stub for the command, which ends with this status; and what it was asked."""
    stub = folder / "scaleproof"
    stub.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\nexit {status}\n')
    stub.chmod(0o755)
    env = {**os.environ, "SCALEPROOF": str(stub), "RESULTS": str(folder / "results")}
    done = subprocess.run(["sh", str(CLUSTER / script)], env=env, check=False)
    return done.returncode, (folder / "asked").read_text()


@pytest.mark.parametrize(("status", "passed_on"), [(0, 0), (1, 1), (11, 11), (10, 0)])
def test_a_prolog_drains_what_is_unfit_and_waits_for_nobody(
    tmp_path: Path, status: int, passed_on: int
) -> None:
    answered, asked = run("prolog.sh", tmp_path, status)
    assert answered == passed_on
    assert asked.startswith("check nodes --gpus auto --within 60s")


@pytest.mark.parametrize("status", [0, 10])
def test_an_epilog_passes_on_what_doctor_says(tmp_path: Path, status: int) -> None:
    assert run("epilog.sh", tmp_path, status) == (status, "check\n")


def test_the_image_is_a_fact_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEPROOF_IMAGE", "sha256:abc")
    assert machine.facts()["version: container image"] == "sha256:abc"
