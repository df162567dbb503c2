"""``constraints-lowest.txt`` pins the lowest declared version of every direct dependency."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LOWER_BOUND = re.compile(r"^([\w.-]+?)(?:\[.*?\])?>=([\d.]+)")


def _declared() -> dict[str, str]:
    """Return the lower bound of each dependency of the package and its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["test"]]
    for requirement in extras["test"]:
        if requirement.startswith("scaleproof["):
            for extra in requirement.partition("[")[2].rstrip("]").split(","):
                asked += extras[extra]
    bounds = (_LOWER_BOUND.match(requirement) for requirement in asked)
    return {bound[1].lower(): bound[2] for bound in bounds if bound}


def test_the_lowest_versions_match_the_declared_ones() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    declared = _declared()
    assert pinned.keys() == declared.keys()
    for name, bound in declared.items():
        assert pinned[name] == bound or pinned[name].startswith(f"{bound}."), name


def test_tox_installs_the_lowest_versions() -> None:
    assert (
        "lowest: python -I -m pip install -c constraints-lowest.txt"
        in (ROOT / "tox.ini").read_text()
    )


@pytest.fixture(scope="module", params=["8.3.0", pytest.param("8.4.2", marks=pytest.mark.full)])
def older_pytest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an older pytest, to precede the installed one on the path."""
    folder = tmp_path_factory.mktemp("pytest")
    words = ["-m", "pip", "install", "-q", "--target", str(folder), f"pytest=={request.param}"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pytest {request.param} cannot be installed: {done.stderr[-300:]}")
    return folder


def test_pytest_8_collects_suites_with_a_duplicate_option(
    older_pytest: Path, tmp_path: Path
) -> None:
    """It has an option ``--strict``, and finds duplicate option names only by an exception."""
    suite = tmp_path / "test_mine.py"
    suite.write_text(
        "from harness import scaling\n\n\n"
        "@scaling('ddp/mlp-nano')\ndef test_ddp(verdict):\n    '''It scales.'''\n"
    )
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--worst-pair', default='theirs')\n"
    )
    words = ["-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "--cpus", "1", "."]
    environment = {**os.environ, "PYTHONPATH": f"{older_pytest}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_ddp[" in done.stdout
