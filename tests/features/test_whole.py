"""A feature is self-contained: its folder can be deleted, and everything else still works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cases.heads import read_head

ROOT = Path(__file__).parents[2]
FEATURES = ROOT / "harness" / "features"
ALL = sorted(p.name for p in FEATURES.iterdir() if (p / "__init__.py").is_file())
#: The feature that CI deletes; it adds commands, report sections, a series and fault scenarios of
#: the plugin.
SOON = ("recovery",)
SAMPLE = "results/samples/ddp-nano"
#: A program that imports every module except those that need torch.
IMPORTS = """
import importlib, pathlib, harness
root = pathlib.Path(harness.__file__).parent
for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root.parent).with_suffix("").parts
    if parts[1] != "training" and parts[-1] != "__main__" and "startup" not in parts:
        importlib.import_module(".".join(parts).removesuffix(".__init__"))
"""


def without(feature: str, folder: Path) -> Path:
    """Copy the project without the folders of this feature, and return the copy."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("harness", "tests", "suites", "results/samples", "examples", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    shutil.rmtree(folder / "harness/features" / feature)
    shutil.rmtree(folder / "tests/features" / feature, ignore_errors=True)
    return folder


def run(folder: Path, *words: str) -> str:
    """Run a program in this copy, which must succeed, and return its output."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (words, done.stdout[-1500:], done.stderr[-1500:])
    return done.stdout


@pytest.mark.parametrize(
    "feature", [pytest.param(f, marks=[pytest.mark.full] * (f not in SOON)) for f in ALL]
)
def test_the_core_works_without_a_feature(feature: str, tmp_path: Path) -> None:
    """Every module can be imported and a record shown and verified; the feature's commands are
    gone.
    """
    folder = without(feature, tmp_path)
    run(folder, "-c", IMPORTS)
    assert "everything agrees" in run(folder, "-m", "harness", "verify", SAMPLE)
    run(folder, "-m", "harness", "report", SAMPLE)
    run(folder, "-m", "harness", "--help")
    known = run(
        folder,
        "-c",
        "from harness.interface.cli.main import commands; print(*commands(), sep='\\n')",
    )
    heads = (read_head(path)[1].get("HELP", {}) for path in (FEATURES / feature).rglob("*.py"))
    gone = {verb for head in heads for verb in head}
    assert gone.isdisjoint(known.splitlines())  # a feature may only add a section of reports


@pytest.mark.full
@pytest.mark.parametrize("feature", ALL)
def test_the_tests_of_the_core_pass_without_a_feature(feature: str, tmp_path: Path) -> None:
    folder = without(feature, tmp_path)
    core = ["analysis", "cases", "record", "interface/report", "interface/schema", "test_rooms.py"]
    tests = [f"tests/{name}" for name in core if (folder / "tests" / name).exists()]
    run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
