"""Digests of the code that a rank ran: user files, this package, and text that was executed."""

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
    """Whether the files of a folder are nobody's own; links are followed."""
    resolved = Path(folder).resolve()
    return any(resolved.is_relative_to(other) for other in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    python = sysconfig.get_paths()
    paths = [python[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return (PACKAGE, *(Path(path).resolve() for path in paths))


#: Python's own files that execute what they are given, for whoever calls them.
_THROUGH = (
    *("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen runpy>"),
    *("runpy.py", "code.py", "timeit.py", "ast.py"),
)
#: Different texts of one file that are kept.
MOST_TEXTS = 64

#: A user's file by itself, by each file that it executed, and by the names that its texts have.
_own: dict[str, str] = {}
_texts: dict[str, dict[str, None]] = {}
_files: dict[Path, str] = {}


def watch(named: Iterable[str]) -> None:
    """Notes from now on what these files execute; a process cannot stop that."""
    paths = {str(Path(name).resolve()) for name in named if name.endswith(".py")}
    if paths and not _own:
        sys.addaudithook(_note)
    _own.update((path, path) for path in paths)


def texts() -> dict[Path, tuple[str, ...]]:
    """Digests of the different texts, in their order, by the file that executed them."""
    return {Path(file): tuple(of_file) for file, of_file in _texts.items()}


def executed_files() -> dict[Path, str]:
    """Digests of the files that were executed and of the libraries that were loaded, as they were
    then.
    """
    return dict(_files)


def _note(event: str, args: tuple[Any, ...]) -> None:
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
    """The text, or the syntax tree, that is compiled."""
    if isinstance(source, ast.AST):
        source = ast.dump(source)
    return source.encode(errors="replace") if isinstance(source, str) else bytes(source)


def _executing() -> str:
    """The user's file that executes something now; empty where another one does."""
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
    """Notes a file where this is its text, else a text of the file that executes it."""
    path = Path(name).resolve()
    if path.is_file() and digest in ("", of_path := digests.digest_of_file(path)):
        if not is_installed(str(path.parent)):
            _own[str(path)] = str(path)
            _files.setdefault(path, of_path)
    elif digest and len(of_file := _texts.setdefault(by, {})) < MOST_TEXTS:
        of_file[digest] = None
        _own[name] = by


def sources(named: Iterable[str] = ()) -> dict[str, str]:
    """Digests of the user's files, by path (relative to the working folder if inside), and the
    versions that a result rests on.

    Files that the case has ``named`` are among them wherever they lie, and whatever they say of
    themselves; so is what these executed without importing it.
    """
    files = [Path(name).resolve() for name in named if name.endswith(".py")]
    return {**_versions(), **_user_files(), **_digests(files), **_executed()}


def of_copy(home: Path) -> dict[str, str]:
    """``sources`` of a rank that works in a copy of a user's folder.

    A file that the launch itself has written, or changed, is no change of the user's: in its place
    stands the file that it was copied from, or if there is none all Python files of the folder,
    since it was made of some of them.
    """
    here = Path.cwd()
    loaded = sources()
    if here == home:
        return loaded
    made = set[str]()
    for name in loaded:
        file = Path(name.partition(", text ")[0])
        if file.is_absolute() or not (here / file).is_file():
            continue  # a version, or a file that was not copied
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
    return path.stat().st_mtime_ns


def _executed() -> dict[str, str]:
    """Files that user's files executed, and texts, numbered."""
    paths = {_named(path): digest for path, digest in executed_files().items()}
    numbered = {
        f"{_named(path)}, text {i}": digest
        for path, of_file in texts().items()
        for i, digest in enumerate(of_file, 1)
    }
    return paths | numbered


def _versions() -> dict[str, str]:
    versions = {"scaleproof": digests.digest_of_package(), "torch": str(torch.__version__)}
    if torch.cuda.is_initialized():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def pass_over() -> None:
    """Pass over what is loaded now and surely nobody's own, in this process and in its forks.

    To look at a module after a fork copies the pages that it and its names lie in: thousands of
    them take longer than all else here.
    """
    _passed_over[:] = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(_NEVER) or not (file := _file(module)) or _others(file)
    ]
    _known.clear()
    _known.update(map(id, _passed_over))


#: Modules that are passed over. They are held, so that no other one ever has the id of one.
_passed_over: list[Any] = []
_known: set[int] = set()
#: Whose modules may import something when they are asked for their file.
_NEVER = ("torch.", "triton.")


def _file(module: Any) -> str:
    return str(getattr(module, "__file__", None) or "")


def _others_than_known() -> list[tuple[str, Any]]:
    """(Name, module) of what was loaded, or put in another one's place, since: newest first."""
    unknown = sum(id(module) not in _known for module in sys.modules.values())
    modules: list[tuple[str, Any]] = []
    for name, module in reversed(sys.modules.items()):
        if len(modules) == unknown:
            break
        if id(module) not in _known:
            modules.append((name, module))
    return modules


def _user_files() -> dict[str, str]:
    """Python files of loaded modules that belong neither to Python, nor to what was installed."""
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
    return {_named(path): digests.digest_of_file(path) for path in paths}


def _named(path: Path) -> str:
    """As it is called from the working folder, if it lies there."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _others(file: str) -> bool:
    """Whether a file is surely nobody's own: thousands are, in some hundred folders.

    A link may lead elsewhere.
    """
    return is_installed(os.path.dirname(file)) and not os.path.islink(file)  # noqa: PTH114,PTH120
