"""How the code reads: words that are no names, and values that share an assignment without need.

The figures may only go down: who lowers one writes the new figure here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "harness"
#: A local of such a name does not say what it holds.
NO_NAMES = ("found", "told", "said", "own", "one", "each", "these")
MOST_NO_NAMES, MOST_UNLIKE = 218, 18


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path, node


def test_locals_say_what_they_hold() -> None:
    count = sum(
        name in NO_NAMES
        for _, function in functions()
        for name in {n.id for n in ast.walk(function)
                     if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    )  # fmt: skip
    assert count == MOST_NO_NAMES, "fewer: write the new figure here; more: find a better name"


def unlike(node: ast.Assign) -> bool:
    """``a, b = f(x), y + 1``: two thoughts in one assignment; ``low, high = 0.9, 1.1`` is one."""
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    if len(target.elts) != len(value.elts) or any(isinstance(e, ast.Starred) for e in value.elts):
        return False
    computed = [e for e in value.elts if not isinstance(e, ast.Constant | ast.Name)]
    return bool(computed) and len({ast.dump(e)[:30] for e in value.elts}) > 1


def test_one_value_an_assignment() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and unlike(node)
    ]
    assert len(found) <= MOST_UNLIKE, found
