"""``scaleproof new`` writes suites for users without a clone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cases import Catalogue
from harness.cases.rules import load_thresholds
from harness.host import nvml
from harness.host.vendor import Gpu
from harness.interface.cli.main import main

GPU = Gpu(index=0, name="NVIDIA H100", uuid="GPU-1", memory_bytes=1 << 30, mig=False)


@pytest.mark.parametrize("gpus", [0, 8])
def test_the_written_suite_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvml, "gpus", lambda: (GPU,) * gpus)
    assert main(["new", "mine"]) == 0
    rules = load_thresholds(tmp_path / "mine" / "thresholds.toml", Catalogue())
    assert [r.world for r in rules] == [(gpus or 2,)] * 2
    compile((tmp_path / "mine" / "test_scaling.py").read_text(), "test_scaling.py", "exec")


def test_the_written_suite_can_be_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new"]) == 0
    screen = capsys.readouterr().out
    assert "pytest scaling --cpus 2" in screen
    command = [sys.executable, "-m", "pytest", "scaling", "--cpus", "2", "--collect-only", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "test_ddp" in done.stdout, done.stdout + done.stderr
    assert main(["new"]) == 4
    assert "exists already" in capsys.readouterr().err
