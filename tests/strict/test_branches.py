"""Every branch that depends on the device has a test on the strict device, or a reason for none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.strict import test_device, test_nvml, test_worlds

TRAINING = Path(__file__).parents[2] / "harness" / "training"
GATE, TIMED = "test_every_strategy_trains_right", "test_every_strategy_is_timed"
HOW, CODEC = "test_how_it_is_computed", "test_every_codec_trains_right"
#: File and function that depend on the device -> the test that covers it, or why none can.
COVERED = {
    "accelerator.py __init__": GATE,
    "accelerator.py select": GATE,
    "accelerator.py repeatable": GATE,
    "accelerator.py usual": GATE,
    "accelerator.py name": TIMED,
    "accelerator.py uuid": TIMED,
    "accelerator.py synchronize": TIMED,
    "accelerator.py events": TIMED,
    "accelerator.py allocator": TIMED,
    "accelerator.py follow_memory": "test_profiles",
    "accelerator.py leave_memory": "test_profiles",
    "agent/world.py __init__": TIMED,
    "context.py update": GATE,
    "context.py on_device": HOW,
    "data.py generators": GATE,
    "describe.py _work": TIMED,
    "models/paced.py forward": HOW,
    "observe/laps.py begin": CODEC,
    "observe/memory.py __init__": TIMED,
    "observe/memory.py settle": TIMED,
    "observe/memory.py now": TIMED,
    "observe/memory.py peak": TIMED,
    "observe/intake.py _weights": TIMED,
    "parallel/experts.py note": GATE,
    "rank/ceiling.py ceiling": GATE,
    "rank/ceiling.py _steady_s": GATE,
    "rank/setup.py cpus_of": GATE,
    "rank/setup.py device_of": GATE,
    "rank/tasks/gate.py is_exact": GATE,
    "rank/examine.py _observe": GATE,
    "rank/tolerance.py rounds_layers": GATE,
    "rank/tasks/sweep.py _timed": "test_collectives_are_swept_and_checked",
    "rank/gate_checks.py switches": HOW,
    "rank/window.py _note": TIMED,
    "script/recording.py _case": "not run: a user's own program, which no agent starts",
    "script/observed.py _note": "test_a_script_of_a_user_s",
    "script/evidence.py rank_of": "test_a_script_of_a_user_s",
    "strategies/fsdp.py _refuse": HOW,
    "strategies/frameworks/accelerate.py expect": "not run: the framework asks CUDA itself",
    "strategies/frameworks/accelerate.py build": "not run: the framework asks CUDA itself",
    "strategies/frameworks/lightning_fabric.py build": "not run: the framework asks CUDA itself",
    "strategies/frameworks/megatron.py _current": "not run: the framework asks CUDA itself",
    "tuning/float8.py product": HOW,
    "tuning/recompute.py _pack": HOW,
}  # fmt: skip
WORDS = {"present", "on_cpu", "is_cpu", "is_cuda"}
NAMES = {"cpu", "cuda", "meta"}


def _asks(node: ast.AST) -> bool:
    """Whether an expression depends on the device."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute | ast.Name):
            if (part.attr if isinstance(part, ast.Attribute) else part.id) in WORDS:
                return True
        if isinstance(part, ast.Compare):
            sides = [part.left, *part.comparators]
            if any(isinstance(s, ast.Constant) and s.value in NAMES for s in sides):
                return True
            if any(isinstance(s, ast.Attribute) and s.attr in ("CPU", "CUDA") for s in sides):
                return True
    return False


def branches() -> Iterator[str]:
    """Yield ``file function`` for everything that depends on the device."""
    for path in sorted(TRAINING.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            inner = {m for n in ast.walk(function) if isinstance(n, ast.FunctionDef)
                     and n is not function for m in ast.walk(n)}  # fmt: skip
            of_function = [n for n in ast.walk(function) if n not in inner]
            tests = [n.test for n in of_function if isinstance(n, ast.If | ast.IfExp | ast.While)]
            tests += [n for n in of_function if isinstance(n, ast.BoolOp | ast.Compare)]
            tests += [n.slice for n in of_function if isinstance(n, ast.Subscript)]
            if any(_asks(test) for test in tests):
                yield f"{path.relative_to(TRAINING)} {function.name}"


def test_every_branch_on_the_device_is_covered() -> None:
    seen = set(branches())
    assert seen - COVERED.keys() == set(), "new: name the strict test that goes this way"
    assert COVERED.keys() - seen == set(), "gone"


def test_the_named_tests_exist() -> None:
    tests = {*vars(test_worlds), *vars(test_device), *vars(test_nvml)}
    named = {what for what in COVERED.values() if not what.startswith("not ")}
    assert named <= tests


def test_no_stream_is_opened() -> None:
    """The strict device cannot show races between streams, so the harness must open none."""
    for file in TRAINING.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                name = node.func.id if isinstance(node.func, ast.Name) else name
                assert name not in ("Stream", "stream", "set_stream"), f"{file}:{node.lineno}"
