"""PYTHONOPTIMIZE takes every assert away: what a verdict's truth rests on must not be one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**os.environ, "PYTHONOPTIMIZE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_gate_holds_without_asserts(tmp_path: Path) -> None:
    """A mutant is still an ERROR, from the ranks to the exit status."""
    mutants = ("--path", str(ROOT / "tests" / "mutants"), "--set", "mutant.bug=sum_for_mean")
    where = ("--cpus", "2", "--results", str(tmp_path), "--no-fabric", "--no-timeline")
    done = run("-m", "harness", "run", "mutant/mlp-nano/weak", *mutants, *where, cwd=tmp_path)
    assert done.returncode == 11 and "step1_gradient" in done.stdout, done.stdout + done.stderr


def test_the_identities_of_the_budget_hold_without_asserts(tmp_path: Path) -> None:
    """The raise is there in optimised code: its text is in the compiled function."""
    for module, text in (("close", "is not closed"), ("losses", "the sum of its terms")):
        code = (
            f"import dis, io, harness.analysis.timeline.{module} as m, inspect;"
            "consts = [c for f in vars(m).values() if inspect.isfunction(f)"
            " for c in [*f.__code__.co_consts, *(k for x in f.__code__.co_consts"
            " if inspect.iscode(x) for k in x.co_consts)]];"
            f"print(any({text!r} in str(c) for c in consts))"
        )
        assert run("-c", code, cwd=ROOT).stdout.strip() == "True", module


def test_no_identity_is_an_assert() -> None:
    """Asserts may tell a programmer, and types; figures are compared by what stays."""
    found = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Assert):
                continue
            arithmetic = (ast.BinOp, ast.Eq, ast.Lt, ast.Gt, ast.LtE, ast.GtE)
            if any(isinstance(x, arithmetic) for x in ast.walk(node.test)):
                found.append(f"{path.name}:{node.lineno}")
    allowed = {"plan.py"}  # a recipe that forgot an arm
    assert [x for x in found if x.partition(":")[0] not in allowed] == []
