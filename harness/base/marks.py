"""Marks by which a suite is known: in its text, and on its functions once it is imported."""

import ast
import warnings
from pathlib import Path

#: Attributes that ``@scaling`` and ``@recovering`` set on a function.
MARK = "__scaleproof_recipes__"
RECOVERS = "__scaleproof_recoveries__"
#: What a function of ``@scaling`` requires.
BOUNDS = "__scaleproof_bounds__"
_CALLED = {"scaling", "recovering"}


def is_suite(path: Path) -> bool:
    """Return whether a file is a suite: by its syntax, and without importing it."""
    try:
        source = path.read_bytes()
        if not any(name.encode() in source for name in _CALLED):
            return False  # most files of most projects, without parsing them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file that is not ours
            nodes = list(ast.walk(ast.parse(source)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if any(_is_marked(node) for node in nodes if isinstance(node, ast.FunctionDef)):
        return True
    modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    modules += [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    used = {
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in nodes
        if isinstance(n, ast.Attribute | ast.Name)
    }
    return any(name.split(".")[0] == "harness" for name in modules) and not _CALLED.isdisjoint(used)


def _is_marked(function: ast.FunctionDef) -> bool:
    """Whether a test takes a verdict below one of the decorators, wherever that comes from."""
    names = {node.attr if isinstance(node, ast.Attribute) else node.id
             for decorator in function.decorator_list for node in ast.walk(decorator)
             if isinstance(node, ast.Attribute | ast.Name)}  # fmt: skip
    takes = any(argument.arg == "verdict" for argument in function.args.args)
    return takes and not _CALLED.isdisjoint(names)
