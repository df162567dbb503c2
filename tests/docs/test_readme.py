"""The README's commands work, and the files that pages name exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.features.history.ingest import ingest
from harness.interface.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README + EXTENDING, re.S)
    for line in block.splitlines()
    if line.strip() and not line.startswith("#")
]
COMMANDS += re.findall(
    r"^\| [^|]+ \| `([^`]+)` \|$", README, re.M
)  # the table of questions and commands
COMMANDS = list(dict.fromkeys(COMMANDS))
#: Commands that need hardware, a cluster, a browser or several minutes; tests/e2e and CI run the
#: main job and the tests.
ELSEWHERE = (
    "git clone",
    "bash scripts/run.sh",
    "pytest suites/",
    "tox",
    "asv",
    "bash scripts/system",
    "scaleproof history nightly",
    "scaleproof compare pr",  # needs a change: tests/features/sharing
)
#: Commands that take half a minute each and have other tests.
LONG = (
    "scaleproof faults recover", "scaleproof run d", "scaleproof run by_hand", "scaleproof run --", "scaleproof run plan suites",
    "scaleproof network", "scaleproof check nodes",
)  # fmt: skip


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_running_suites_and_tests_comes_first() -> None:
    assert COMMANDS[1] == "bash scripts/run.sh suites"
    assert COMMANDS[2] == "bash scripts/run.sh tests"
    assert "scripts/run.sh tests" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=[pytest.mark.full] if c.startswith(LONG) else [])
        for c in COMMANDS
        if not c.startswith(ELSEWHERE)
    ],
)
def test_a_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if words[0] == "scaleproof":
        words[:1] = [sys.executable, "-m", "harness"]
    if words[0] == "python":
        words[0] = sys.executable
    name = words[3] if words[1:3] == ["-m", "harness"] else ""
    measures = name in ("network", "faults") or (name == "run" and words[4] != "list")
    if measures:
        end = words.index("--") if "--" in words else len(words)  # what follows is a script's
        words[end:end] = ["--results", str(tmp_path)]
    if words[3:5] == ["report", "site"]:
        words += ["--to", str(tmp_path / "site")]
    if name == "new":
        words[4] = str(tmp_path / words[4])
    if name == "jobs":
        words += ["--results", str(tmp_path)]
    if name == "history":
        words += ["--results", str(tmp_path)]
        samples = [ROOT / "results/samples" / n for n in ("ddp-nano", "ddp-nano-again")]
        ingest(samples, tmp_path)
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    # 5: measured, but no rule applies to it; 10: the machine was too noisy to decide.
    assert done.returncode in (0, 5, 10), done.stdout + done.stderr


def test_user_files_in_the_docs_equal_those_in_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", EXTENDING, re.S)
    shown = [b for b in blocks if b.startswith("# examples/")]
    assert len(shown) == 4
    for block in shown:
        first, _, code = block.partition("\n")
        assert code == (ROOT / first.removeprefix("# ")).read_text()
        assert len(code.splitlines()) <= 30


def test_the_drawn_tree_exists() -> None:
    tree = re.search(r"```text\n(harness/.*?)```", CONTRIBUTING, re.S)
    assert tree
    names = [line.split()[0] for line in tree[1].splitlines() if line and not line.startswith(" ")]
    assert len(names) > 8
    for name in names:
        assert (ROOT / name).exists(), name


def test_every_tox_environment_is_documented() -> None:
    names = set(re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text(), re.M))
    assert names == {n for n in names if f"`{n}`" in CONTRIBUTING}


def test_the_functions_named_in_one_verdict_exist() -> None:
    page = (ROOT / "docs" / "one-verdict.md").read_text()
    steps = re.findall(r"^\| \d+ \| `([\w.]+)` in `([\w/.]+)` \|", page, re.M)
    assert len(steps) >= 12
    for name, file in steps:
        tree = ast.parse((ROOT / file).read_text())
        names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert set(name.split(".")) <= names, f"{file} has no {name}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_files_named_on_a_page_exist(page: Path) -> None:
    for file in re.findall(
        r"`((?:harness|tests|suites|benchmarks|docs|scripts)/[\w/.-]+)`", page.read_text()
    ):
        assert (ROOT / file).exists(), f"{page.name} names {file}"


def test_the_example_of_a_report_is_what_its_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = (ROOT / "docs/reports.md").read_text()
    command, shown = re.findall(r"```sh\n(.*?)\n```\s+```text\n(.*?)```", page, re.S)[0]
    assert main(shlex.split(command)[1:]) == 0
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in filter(None, map(str.strip, shown.splitlines())):
        assert line in printed, line
