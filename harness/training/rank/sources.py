"""Compute digests of the code that a rank ran.

They cover the user's files, this package, and executed source texts that were never files.
"""

import ast
import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from harness.base import files as digests
from harness.base.programs import PACKAGE
from harness.host import copies


@functools.cache
def is_installed(folder: str) -> bool:
    """Return whether a folder belongs to Python, to an installed package or to this package.

    All other folders may hold files of the user. Symbolic links are followed.
    """
    resolved = Path(folder).resolve()
    return any(resolved.is_relative_to(other) for other in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Return the folders of this package, the standard library and the installed packages."""
    python = sysconfig.get_paths()
    paths = [python[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return (PACKAGE, *(Path(path).resolve() for path in paths))


#: Files of the standard library that execute code on behalf of their caller. The search for the
#: user's file that executes something skips their frames.
_THROUGH = (
    *("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen runpy>"),
    *("runpy.py", "code.py", "timeit.py", "ast.py"),
)
#: Number of different executed texts that are recorded for each user's file.
MOST_TEXTS = 64

#: Maps the file name of a code object to the user's file that is responsible for the code. The file
#: name belongs to that file itself, to a file that it executed, or to a text that it compiled.
_own: dict[str, str] = {}
#: Digests of the texts that each user's file executed, in the order of execution.
_texts: dict[str, dict[str, None]] = {}
#: Digests of the files that user's files executed or loaded.
_files: dict[Path, str] = {}


def watch(named: Iterable[str]) -> None:
    """Start to record all code that these files execute.

    The recording uses an audit hook, which Python cannot remove again.
    """
    paths = {str(Path(name).resolve()) for name in named if name.endswith(".py")}
    if paths and not _own:
        sys.addaudithook(_note)
    _own.update((path, path) for path in paths)


def texts() -> dict[Path, tuple[str, ...]]:
    """Map each user's file to the digests of the different texts that it executed, in order."""
    return {Path(file): tuple(of_file) for file, of_file in _texts.items()}


def executed_files() -> dict[Path, str]:
    """Return the digests of executed files and loaded libraries, computed when that happened."""
    return dict(_files)


def _note(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: record the code that a user's file compiles, executes or loads."""
    if event == "compile" and args[0] is not None:
        if by := _executing():
            _add(by, str(args[1]), digests.digest_of_bytes(_content(args[0])))
    elif event == "exec":
        if by := _executing():
            _add(by, str(getattr(args[0], "co_filename", "")))
    elif event in ("marshal.loads", "code.__new__"):
        if by := _own.get(sys._getframe(1).f_code.co_filename, ""):
            _add(by, "", digests.digest_of_bytes(repr(args).encode()))
    elif event == "ctypes.dlopen" and args[0] and _executing():
        _add("", str(args[0]))


def _content(source: Any) -> bytes:
    """Return the source text that is compiled, or a dump of the syntax tree, as bytes."""
    if isinstance(source, ast.AST):
        source = ast.dump(source)
    return source.encode(errors="replace") if isinstance(source, str) else bytes(source)


def _executing() -> str:
    """Return the user's file that executes code now, or "" if another file does."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name in _own:
            return _own[name]
        if not name.endswith(_THROUGH):
            return ""
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _add(by: str, name: str, digest: str = "") -> None:
    """Record executed code as a file if ``name`` is a file with this digest, else as a text.

    A text is recorded under ``by``, the user's file that executes it.
    """
    path = Path(name).resolve()
    if path.is_file() and digest in ("", of_path := digests.digest_of_file(path)):
        if not is_installed(str(path.parent)):
            _own[str(path)] = str(path)
            _files.setdefault(path, of_path)
    elif digest and len(of_file := _texts.setdefault(by, {})) < MOST_TEXTS:
        of_file[digest] = None
        _own[name] = by


def sources(named: Iterable[str] = ()) -> dict[str, str]:
    """Return digests of the user's files by path, and the versions that a result depends on.

    Paths in the working folder are relative to it. The result always contains the files that the
    case has ``named``, wherever they are, and the code that these executed without importing it.
    """
    files = [Path(name).resolve() for name in named if name.endswith(".py")]
    return {**_versions(), **_user_files(), **_digests(files), **_executed()}


def of_copy(home: Path) -> dict[str, str]:
    """Return ``sources`` for a rank that works in a copy of the user's folder ``home``.

    A file that the launch itself has written or changed is not a change by the user. The result
    contains the original of that file instead. If there is no original, it contains all Python
    files of the folder, because the file was generated from some of them.
    """
    here = Path.cwd()
    loaded = sources()
    if here == home:
        return loaded
    made = set[str]()
    for name in loaded:
        file = Path(name.partition(", text ")[0])
        if file.is_absolute() or not (here / file).is_file():
            continue  # not a copied file: a version, or a file outside the folder
        original = home / file
        if not original.is_file() or _written_at(here / file) > _written_at(original):
            made.add(name)
    kept = {name: digest for name, digest in loaded.items() if name not in made}
    originals = [home / name for name in made if (home / name).is_file()]
    if len(originals) < len(made):
        results = here.parent
        originals = [
            entry.source
            for entry in copies.entries(home, results)
            if entry.name.suffix == ".py" and not entry.link
        ]
    return kept | {str(path.relative_to(home)): digests.digest_of_file(path) for path in originals}


def _written_at(path: Path) -> int:
    """Return the time of a file's last modification in ns."""
    return path.stat().st_mtime_ns


def _executed() -> dict[str, str]:
    """Return digests of the files and of the numbered texts that the user's files executed."""
    paths = {_named(path): digest for path, digest in executed_files().items()}
    numbered = {
        f"{_named(path)}, text {i}": digest
        for path, of_file in texts().items()
        for i, digest in enumerate(of_file, 1)
    }
    return paths | numbered


def _versions() -> dict[str, str]:
    """Return the digest of this package and the versions of torch and, on GPUs, of NCCL."""
    versions = {"scaleproof": digests.digest_of_package(), "torch": str(torch.__version__)}
    if torch.cuda.is_initialized():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def pass_over() -> None:
    """Make this process and its forks skip the modules of installed packages that are loaded now.

    Looking at a module after a fork copies the memory pages of the module and of its names. For
    thousands of modules that takes longer than everything else in this file.
    """
    _passed_over[:] = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(_NEVER) or not (file := _file(module)) or _others(file)
    ]
    _known.clear()
    _known.update(map(id, _passed_over))


#: The modules that are skipped. The list keeps them alive, so that no later module can have the id
#: of one of them.
_passed_over: list[Any] = []
_known: set[int] = set()
#: Prefixes of modules that may import something when their ``__file__`` is read.
_NEVER = ("torch.", "triton.")


def _file(module: Any) -> str:
    """Return the file of a module, or "" if it has none."""
    return str(getattr(module, "__file__", None) or "")


def _others_than_known() -> list[tuple[str, Any]]:
    """Return (name, module) of all modules that are not to be skipped, newest first.

    They were loaded, or replaced another module, after ``pass_over`` was called.
    """
    unknown = sum(id(module) not in _known for module in sys.modules.values())
    modules: list[tuple[str, Any]] = []
    for name, module in reversed(sys.modules.items()):
        if len(modules) == unknown:
            break
        if id(module) not in _known:
            modules.append((name, module))
    return modules


def _user_files() -> dict[str, str]:
    """Return digests of the Python files of loaded modules that are not installed."""
    files = {
        file
        for name, module in _others_than_known()
        if not name.startswith(_NEVER) and (file := _file(module))
    }
    loaded = {Path(file).resolve() for file in files if not _others(file)}
    return _digests(
        path
        for path in sorted(loaded)
        if path.suffix == ".py" and not is_installed(str(path.parent))
    )


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Map the names of these files in the record to their digests."""
    return {_named(path): digests.digest_of_file(path) for path in paths}


def _named(path: Path) -> str:
    """Return a path relative to the working folder if it is inside, else the path as it is."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _others(file: str) -> bool:
    """Return whether a file certainly belongs to an installed package and not to the user.

    This must be fast, because it is called for thousands of files in some hundred folders. The
    result is False for a symbolic link, because its target may be a user's file.
    """
    return is_installed(os.path.dirname(file)) and not os.path.islink(file)  # noqa: PTH114,PTH120
