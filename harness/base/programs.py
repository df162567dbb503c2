"""Programs of this package that other processes start, and import of files by path."""

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
#: The attribute with the bounds that ``@scaling`` sets.
BOUNDS = "__scaleproof_bounds__"
#: The names of the decorators that make a file a suite.
_CALLED = {"scaling", "recovering"}


def is_suite(path: Path) -> bool:
    """Return whether a file is a suite, according to its syntax. The file is not imported."""
    try:
        source = path.read_bytes()
        if not any(name.encode() in source for name in _CALLED):
            return False  # this rejects most files without parsing them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about a user's file are not ours to print
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
    """Return whether a function has one of the decorators, from any module, and takes
    ``verdict``.
    """
    names = {node.attr if isinstance(node, ast.Attribute) else node.id
             for decorator in function.decorator_list for node in ast.walk(decorator)
             if isinstance(node, ast.Attribute | ast.Name)}  # fmt: skip
    takes = any(argument.arg == "verdict" for argument in function.args.args)
    return takes and not _CALLED.isdisjoint(names)


def load_module(file: str) -> ModuleType:
    """Import the module with this dotted name, or with this path to a ``.py`` file. It is imported
    once.
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

#: Options with which Python runs a module of this package. With ``-P`` a user's ``secrets.py`` in
#: the working folder does not replace the standard library's module. ``own_folder`` appends the
#: working folder for programs that are not scripts.
MODULE = ("-P", "-m")

#: The folder of this package, and the folder that must be on the path to import it.
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent


def own_folder() -> None:
    """Append the working folder to the import path, after everything else."""
    sys.path.append(str(Path.cwd()))


def without_own_folder() -> None:
    """Remove the working folder from the end of the import path. Call this before changing the
    folder.
    """
    if sys.path[-1:] == [str(Path.cwd())]:
        sys.path.pop()


def path() -> str:
    """Return the search path for programs: the folder of this interpreter, then the PATH.

    The Python of an environment is often started by its full path, without activating the
    environment.
    """
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def which(name: str) -> str | None:
    """Return the path of a program, or None if there is none of this name."""
    return shutil.which(name, path=path())
