"""Stop a script before it changes a file outside the folders that its launch may write to.

An audit hook (PEP 578) sees every file that Python code opens for writing, renames, removes or
creates. It resolves each path first, so absolute paths, ``~``, ``..`` and links are all checked.
``torch.save`` and ``torch.jit.save`` write in C++, so the hooks on them call ``refuse``. The hook
does not see other native writers (safetensors, HDF5, SQLite) or programs that the script starts:
these are stopped by the kernel if it allows read-only mounts (``host/sandbox.py``).
This file imports only the standard library, because it runs at the start of an interpreter.
"""

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Environment variable that lists the folders to which a launch may write, separated as in
#: ``PATH``.
WRITABLE = "SCALEPROOF_WRITABLE"
#: File systems of the kernel, which hold devices, shared memory and settings of processes. They are
#: always writable, because they hold no files of the user.
_KERNEL = ("/dev", "/proc", "/sys")
#: Names of cache folders and files, such as ``~/.cache``, ``__pycache__`` and ``labels.cache``.
#: They remain writable.
_CACHE = re.compile(r"caches?_*$", re.IGNORECASE)
#: Folders for caches of compilers and drivers in the home directory.
_CACHES = (".cache", ".nv", ".triton")
#: Environment variables that name a cache, in addition to those with CACHE in their name.
_CACHE_HOMES = {"HF_HOME", "TORCH_HOME"}
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events that change the target of a path. The first number is the position of the path among
#: the event's arguments. The second is the position of the descriptor of the folder in which a
#: relative path begins, or None if the event has no descriptor.
_FOLLOWED = {"os.chmod": (0, 2), "os.chown": (0, 3), "os.truncate": (0, None), "os.utime": (0, 3)}
#: Audit events that change the directory entry itself, which may be a link.
_ENTRY = {
    "os.link": (1, 3),
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.symlink": (1, 2),
    "shutil.rmtree": (0, 1),
}
_EVENTS = {"open", "os.rename", *_FOLLOWED, *_ENTRY}


class OutsideWriteError(PermissionError):
    """The error for a refused write outside the launch's folders. No file was changed.

    The class derives from ``PermissionError``, so that a library treats the home directory as
    read-only and continues if it can.
    """


class WriteGuard:
    """A guard that refuses changes outside ``roots`` in this process and in its forks."""

    def __init__(self, roots: Iterable[str]) -> None:
        self._roots = [Path(root).resolve() for root in (*roots, *map(str, caches()), *_KERNEL)]

    def install(self) -> None:
        """Install the audit hook. It remains until this process ends."""
        sys.addaudithook(self._audit)

    def refuse(self, path: Any, folder: Any = None, *, follow: bool = True) -> None:
        """Raise OutsideWriteError if a change of ``path`` would be outside the roots.

        Args:
            path: a path in any form that the standard library accepts. A file descriptor is always
                allowed.
            folder: the descriptor of the folder in which a relative path begins. None and -1 stand
                for the current folder.
            follow: whether the change affects the target of a link instead of the link itself.
        """
        if isinstance(path, int) or path is None:
            return
        named = Path(os.fsdecode(path))
        if isinstance(folder, int) and folder >= 0:
            named = Path(f"/proc/self/fd/{folder}") / named
        link = not follow and named.name not in ("", "..")
        place = named.parent.resolve() / named.name if link else named.resolve()
        if not self._allowed(place):
            raise OutsideWriteError(
                f"the script would write to {place}, which is outside the launch's copy of its"
                " folder: the write was refused and nothing was changed. Let the script write to a"
                f" relative path inside its folder, or allow it by --writes {place.parent}"
            )

    def _allowed(self, place: Path) -> bool:
        if any(place.is_relative_to(root) for root in self._roots):
            return True
        return any(_CACHE.search(part) for part in place.parts)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _CHANGES:
                self.refuse(path)
        elif event == "os.rename":
            source, target, source_folder, target_folder = args
            self.refuse(source, source_folder, follow=False)
            self.refuse(target, target_folder, follow=False)
        elif event in _FOLLOWED:
            place, folder = _FOLLOWED[event]
            self.refuse(args[place], None if folder is None else args[folder])
        elif (
            event != "os.mkdir" or not Path(os.fsdecode(args[0])).is_dir()
        ):  # a mkdir of an existing folder fails in any case
            place, folder = _ENTRY[event]
            self.refuse(args[place], args[folder], follow=False)


def caches() -> list[Path]:
    """Return the folders for caches of compilers, drivers and libraries."""
    named = [
        Path(folder)
        for name, folder in os.environ.items()
        if ("CACHE" in name or name in _CACHE_HOMES) and Path(folder).is_absolute()
    ]
    return [*(Path.home() / name for name in _CACHES), *named]


guard: WriteGuard | None = None


def install(roots: Iterable[str]) -> None:
    """Install the guard in this process unless it is installed already.

    Forked ranks and new interpreters call this function.
    """
    global guard
    if guard is None:
        guard = WriteGuard(roots)
        guard.install()


def refuse(path: Any) -> None:
    """Raise OutsideWriteError if this process is guarded and ``path`` is outside its folders."""
    if guard is not None:
        guard.refuse(path)
