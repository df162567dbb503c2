"""The examples of CONTRIBUTING.md work as they are printed, in a copy of the tree."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.cases import Catalogue
from tests.docs.test_extending import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.S))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with every example in its place; users' files are in ``mine``."""
    folder = tmp_path_factory.mktemp("contributing")
    shutil.copytree(
        ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path, body in EXAMPLES.items():
        if path == "harness/cases/metrics.py":
            metrics = folder / path
            head = "METRICS: Mapping[str, Metric] = {"
            metrics.write_text(metrics.read_text().replace(head, f"{head}\n    {body.strip()}"))
            continue
        kind = path.partition("/")[0]
        place = (
            folder / path if kind in ("harness", "suites") else folder / "mine" / Path(path).name
        )
        place.parent.mkdir(exist_ok=True)
        place.write_text(body)
    return folder


def test_there_is_an_example_of_ten_lines_for_each_extension() -> None:
    assert len(EXAMPLES) == 5
    for path, body in EXAMPLES.items():
        code = [line for line in body.splitlines() if line.strip()]
        assert len(code) <= 10, path


@pytest.fixture(scope="module")
def catalogue(tree: Path) -> Catalogue:
    return Catalogue([tree / "mine"])


def test_a_strategy_and_a_model_pass_the_correctness_gate(launch: Any) -> None:
    world = launch("my_ddp/line-small")
    assert world.cause is None and not world.failed
    assert all(len(rank.checks) > 10 for rank in world.ranks)


def test_a_metric(tree: Path) -> None:
    rules = tree / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "tail"\ncase = "ddp/*"\nmetric = "tail_step_s"\nat_most = 1.0\n'
        'unit = "s"\nsource = "requirement"\n'
    )
    assert "tail" in run(tree, "-m", "harness", "check", "thresholds", str(rules))


def test_a_suite(tree: Path) -> None:
    collected = run(tree, "-m", "pytest", "suites", "--cpus", "2", "--collect-only", "-q")
    assert "test_mine.py" in collected and "test_ddp" in collected


def test_a_command(tree: Path) -> None:
    assert run(tree, "-m", "harness", "run", "hello") == " hello\n"
    assert "print a greeting" in run(tree, "-m", "harness", "--help-all")
