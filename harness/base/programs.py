"""Import files by path, and define how modules of this package are started as programs."""

import ast
import importlib
import importlib.util
import os
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

#: The attribute that ``@scaling`` sets on a function.
MARK = "__scaleproof_recipes__"
#: The attribute that ``@recovering`` sets on a function.
RECOVERS = "__scaleproof_recoveries__"
#: The attribute with the bounds that ``@scaling`` sets.
BOUNDS = "__scaleproof_bounds__"
#: The names of the decorators that make a file a suite.
_CALLED = {"scaling", "recovering"}


def is_suite(path: Path) -> bool:
    """Return whether a file is a suite, judged from its syntax without importing it."""
    try:
        source = path.read_bytes()
        if not any(name.encode() in source for name in _CALLED):
            return False  # this rejects most files without parsing them
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # this program must not print warnings about a user's file
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
    """Return whether a function has one of the decorators and an argument ``verdict``.

    The decorator may come from any module.
    """
    names = {node.attr if isinstance(node, ast.Attribute) else node.id
             for decorator in function.decorator_list for node in ast.walk(decorator)
             if isinstance(node, ast.Attribute | ast.Name)}  # fmt: skip
    takes = any(argument.arg == "verdict" for argument in function.args.args)
    return takes and not _CALLED.isdisjoint(names)


def load_module(file: str) -> ModuleType:
    """Import a module, given by its dotted name or by the path of its ``.py`` file, and return it.

    A module that was imported before is not imported again.
    """
    path = Path(file).resolve()
    if path.suffix != ".py":
        return importlib.import_module(file)
    name = f"scaleproof_user_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)  # a user's file may import files in its folder
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


#: Modules that this package starts as separate programs.
TRAINING = "harness.training"
AGENT = f"{TRAINING}.agent.agent"
TORCHRUN_RANK = f"{TRAINING}.rank.under_torchrun"
SWITCH = "harness.launch.emulation.switch"
RECORDER = "harness.measure.recorder"

#: Options with which Python runs a module of this package. ``-P`` keeps the working folder off the
#: import path, so that a user's ``secrets.py`` does not replace the standard library's module.
#: Programs that need the working folder append it with ``own_folder``.
MODULE = ("-P", "-m")

#: The folder of this package.
PACKAGE = Path(__file__).parents[1]
#: The folder that must be on the import path to import this package.
ROOT = PACKAGE.parent


def own_folder() -> None:
    """Append the working folder to the end of the import path."""
    sys.path.append(str(Path.cwd()))


def without_own_folder() -> None:
    """Remove the working folder from the end of the import path.

    Call this before the working folder changes.
    """
    if sys.path[-1:] == [str(Path.cwd())]:
        sys.path.pop()


def path() -> str:
    """Return the search path for programs: the folder of this interpreter, then the PATH.

    The folder of the interpreter is included because environments are often used by the full path
    of their Python, without activating them.
    """
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def which(name: str) -> str | None:
    """Return the path of the program with this name, or None if there is none."""
    return shutil.which(name, path=path())
