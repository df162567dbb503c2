"""Style of the code: meaningless names, duplicate class names, assignments of unrelated values.

The limits may only decrease: whoever reduces a count lowers its limit here.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "harness"
#: Names that do not describe a value.
NO_NAMES = ("found", "told", "said", "own", "one", "each", "these")
#: Beginnings of docstrings without a subject: "What a rank did." cannot be read without the code.
NO_SUBJECT = ("What ", "The same")
MOST_UNLIKE = 5
#: Class names that the catalogue expects in several files, and the limit for other duplicates.
ASKED_FOR = {"Codec", "Simulation"}
MOST_TWICE = 0


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path, node


def named(node: ast.AST) -> str:
    """Return the name that a parameter, an assignment or a function defines; else ""."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef) else ""


def test_local_names_describe_their_values() -> None:
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


def test_class_names_are_unique() -> None:
    count = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name not in ASKED_FOR
    )
    twice = sorted(name for name, times in count.items() if times > 1)
    assert len(twice) <= MOST_TWICE, twice


def unlike(node: ast.Assign) -> bool:
    """Whether values are unrelated, as in ``a, b = f(x), y + 1``, not ``low, high = 0.9, 1.1``."""
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    if len(target.elts) != len(value.elts) or any(isinstance(e, ast.Starred) for e in value.elts):
        return False
    computed = [e for e in value.elts if not isinstance(e, ast.Constant | ast.Name)]
    return bool(computed) and len({ast.dump(e)[:30] for e in value.elts}) > 1


def test_an_assignment_has_one_value() -> None:
    unlike_values = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and unlike(node)
    ]
    assert len(unlike_values) <= MOST_UNLIKE, unlike_values
