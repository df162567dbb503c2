"""Programs of this package that other processes start, and files that are imported by path."""

import ast
import importlib
import importlib.util
import os
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

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


def load_module(file: str) -> ModuleType:
    """The module of that dotted name, or of that path to a ``.py`` file; imported once."""
    path = Path(file).resolve()
    if path.suffix != ".py":
        return importlib.import_module(file)
    name = f"scaleproof_user_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)  # a user's file may import its neighbours
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, f"{path} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


TRAINING = "harness.training"
AGENT = f"{TRAINING}.agent.agent"
TORCHRUN_RANK = f"{TRAINING}.rank.under_torchrun"
SWITCH = "harness.launch.emulation.switch"
RECORDER = "harness.measure.recorder"

#: How Python runs a module of this package: a user's ``secrets.py`` in the working folder must not
#: be taken for the standard library's. What is no script's finds that folder last (``own_folder``).
MODULE = ("-P", "-m")

#: The folder of this package, and the one that a program needs on its path to import it.
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent


def own_folder() -> None:
    """Let this program find what lies in its working folder, after everything else."""
    sys.path.append(str(Path.cwd()))


def without_own_folder() -> None:
    """Let it find there no more than any interpreter would: before the folder is changed."""
    if sys.path[-1:] == [str(Path.cwd())]:
        sys.path.pop()


def path() -> str:
    """Where programs are looked for: beside this interpreter, then on the PATH.

    An environment's Python is often started by its full path, with nothing activated.
    """
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def which(name: str) -> str | None:
    """A program's path, or None where there is none of this name."""
    return shutil.which(name, path=path())
