"""How the code reads: words that are no names, names that stand twice, assignments of two thoughts.

The figures may only go down: who lowers it writes the new one here.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "harness"
#: A local of such a name does not say what it holds.
NO_NAMES = ("found", "told", "said", "own", "one", "each", "these")
#: A first sentence that begins so has no subject: "What a rank did." is a riddle without the code.
NO_SUBJECT = ("What ", "The same")
MOST_UNLIKE = 5
#: Classes that files are asked for have one name in all of them; of other names so many stand twice.
ASKED_FOR = {"Codec", "Simulation"}
MOST_TWICE = 0


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path, node


def named(node: ast.AST) -> str:
    """The name that a parameter, an assignment or a function brings in; empty for others."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef) else ""


def test_locals_say_what_they_hold() -> None:
    without_a_meaning = sorted({
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {name}"
        for path, function in functions()
        for node in ast.walk(function)
        if (name := named(node)) in NO_NAMES
    })  # fmt: skip
    assert not without_a_meaning, "find a name that says what each of them holds"


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    without_a_subject = [
        f"{path.relative_to(PACKAGE)}: {text.splitlines()[0]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented) and (text := ast.get_docstring(node))
        if text.startswith(NO_SUBJECT)
    ]
    assert not without_a_subject, "say what it is, or what it does"


def test_a_class_has_a_name_of_its_own() -> None:
    count = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name not in ASKED_FOR
    )
    twice = sorted(name for name, times in count.items() if times > 1)
    assert len(twice) <= MOST_TWICE, twice


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
    unlike_values = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and unlike(node)
    ]
    assert len(unlike_values) <= MOST_UNLIKE, unlike_values
