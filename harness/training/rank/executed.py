"""Text and files that a user's file executes without importing them as modules.

A module that is loaded can be found and digested. A text that goes to ``exec`` leaves nothing
behind, nor does a file whose module has no name: they are seen as they are executed, by an audit
hook of Python's (PEP 578). Ranks that run no file of a user's have none.
"""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.base import files as digests
from harness.training.rank.installed import is_installed

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


def files() -> dict[Path, str]:
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
