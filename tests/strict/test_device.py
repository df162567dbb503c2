"""The strict device refuses what a GPU refuses, and launches on it report such mistakes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cases import Catalogue
from harness.launch.wire.messages import Timed
from tests.strict.machine import environment
from tests.strict.world import Worlds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml")


def test_the_strict_device_refuses_what_a_gpu_refuses(library: Path) -> None:
    script = Path(__file__).with_name("refused.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=dict(environment(library)), capture_output=True, text=True,
        check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "good", "bad"),
    [
        ("data.py", "device=ids.device", "device='cpu'"),
        pytest.param(
            "observe/intake.py", "dtype=torch.int64, device=x.device", "dtype=torch.int64",
            marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_a_missing_device_argument_is_reported(
    file: str, good: str, bad: str, tmp_path: Path
) -> None:
    """Inject a past defect into a copy of the package: it made every launch on a GPU crash."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "harness", copy / "harness")
    source = copy / "harness" / "training" / file
    assert source.read_text().count(good) >= 1
    source.write_text(source.read_text().replace(good, bad, 1))
    worlds = Worlds(tmp_path, 1, Catalogue(), package=copy)
    try:
        left = worlds.launch(
            worlds.case("single/mlp-nano", 1), lambda _: Timed(steps=4, cut=2, draw=1)
        )
    finally:
        worlds.close()
    assert any("Expected all tensors to be on the same device" in why for why in left.wrong)
