"""PYTHONOPTIMIZE removes every assert, so no check that a verdict relies on may be an assert."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**os.environ, "PYTHONOPTIMIZE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


GATE = """
import sys
from pathlib import Path
from harness.analysis.judging.blockers import gate_failure
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Purpose
from harness.cases import Arm, Catalogue, Device, Plan, Protocol, Role, Site

mutants, folder = map(Path, sys.argv[1:])
known = Catalogue([mutants])
bench = Bench(known, known.get("engines", "local"), Where())
for bug in ("none", "sum_for_mean"):
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    case = known.normalise(site.case("mutant/mlp-nano", knobs={"mutant.bug": bug}))
    arm = Arm(name="@", case=case, role=Role.SUBJECT)
    plan = Plan(name="", arms=(arm,), contrasts=(), protocol=Protocol(steps=6, cut=2))
    order = Order(plan=plan, arm=arm, purpose=Purpose.GATE, window=plan.window)
    (described,) = bench.describe([case])
    print(bug, gate_failure(bench.launch(order, folder, described, lambda step: None)))
bench.worlds.close()
"""


@pytest.mark.full
def test_the_gate_holds_without_asserts(tmp_path: Path) -> None:
    """With optimised ranks, a mutant is still detected and a correct training run passes."""
    done = run("-c", GATE, str(ROOT / "tests" / "mutants"), str(tmp_path), cwd=tmp_path)
    right, wrong = done.stdout.splitlines()
    assert right == "none None", done.stdout + done.stderr
    assert "step1_gradient" in wrong


def test_the_identities_of_the_budget_hold_without_asserts(tmp_path: Path) -> None:
    """The error is still raised in optimised code: its text is in the compiled function."""
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
    """Asserts may document types and conditions for programmers, but not compare figures."""
    listed = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Assert):
                continue
            arithmetic = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow)
            compared = (ast.Eq, ast.Lt, ast.Gt, ast.LtE, ast.GtE)
            if any(isinstance(x, arithmetic + compared) for x in ast.walk(node.test)):
                listed.append(f"{path.name}:{node.lineno}")
    allowed = {"plan.py"}  # a recipe that forgot an arm
    assert [x for x in listed if x.partition(":")[0] not in allowed] == []
