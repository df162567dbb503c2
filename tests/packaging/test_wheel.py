"""The wheel contains every file of the package, and works without a clone."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shipped() -> set[str]:
    """Return the package's files in git."""
    words = ["git", "ls-files", "harness"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\n") if name}


def test_package_data_patterns_match_every_file() -> None:
    """Files other than Python must match a pattern, or the wheel would lack them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = [f"harness/{p}" for p in settings["package-data"]["harness"]]
    flat = [p.replace("**/", "*") for p in patterns]
    others = [name for name in shipped() if not name.endswith(".py")]
    assert others
    assert [n for n in others if not any(fnmatch.fnmatch(n, p) for p in flat)] == []
    folders = {str(Path(n).parent) for n in shipped() if n.endswith(".py")}
    assert [f for f in folders if f"{f}/__init__.py" not in shipped()] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    (made,) = place.glob("*.whl")
    return made


@pytest.mark.full
def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("harness/")}
    words = ["git", "ls-files", "suites", "results/samples"]
    beside = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    copied = {
        f"harness/shipped/{name.removeprefix('results/')}" for name in beside.split("\n") if name
    }
    assert inside == shipped() | copied


@pytest.mark.full
@pytest.mark.alone
def test_the_wheel_works_in_an_empty_environment_without_a_clone(
    wheel: Path, tmp_path: Path
) -> None:
    """As with ``uvx`` and ``pipx run``: new, check, demo, run, report, verify and site."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin/python"), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    work = tmp_path / "work"
    work.mkdir()
    usual = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    more = {k: v for k, v in os.environ.items() if k.startswith(("LANG", "LC_"))}

    def scaleproof(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(environment / "bin/scaleproof"), *words], cwd=work, env={**usual, **more},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        return done.returncode, done.stdout

    assert scaleproof("new", "mine")[0] == 0
    assert scaleproof("check")[0] in (0, 10)
    assert scaleproof("run", "demo")[0] in (0, 5, 10), "a busy machine leaves it open"
    case = ("ddp/mlp-nano/weak", "--cpus", "1", "--no-fabric", "--time-budget", "20")
    assert scaleproof("run", *case)[0] in (0, 5, 10)
    runs = sorted((work / "results/runs").glob("*/*"))
    assert len(runs) == 2 and all((run / "report.html").is_file() for run in runs)
    status, summary = scaleproof("report", str(runs[0]), "--summary", "--json")
    assert status == 0 and json.loads(summary)["headline"]
    assert scaleproof("verify", str(runs[0]))[0] == 0
    assert scaleproof("report", "site")[0] == 0
    pytest_ = [str(environment / "bin/python"), "-m", "pytest", "--collect-only", "-q", "mine"]
    listed = subprocess.run(pytest_, cwd=work, capture_output=True, text=True, check=False)
    assert "mine/test_scaling.py::" in listed.stdout, listed.stdout + listed.stderr
