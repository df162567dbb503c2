"""Stop a script before it changes a file outside the folders that its launch may write to.

An audit hook (PEP 578) sees every file that Python code opens for writing, renames, removes or
creates, whatever way the path was spelled: absolute, ``~``, ``..`` or through a link.
``torch.save`` and ``torch.jit.save`` write in C++; the hooks on them call ``refuse``. Other native
writers (safetensors, HDF5, SQLite) and programs that the script starts are not seen. This file
imports nothing but the standard library, because it runs as a Python starts.
"""

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Variable with the folders that a launch may write to, separated as in ``PATH``.
WRITABLE = "SCALEPROOF_WRITABLE"
#: File systems of the kernel: devices, shared memory and a process's own settings.
_KERNEL = ("/dev", "/proc", "/sys")
#: Names of caches: ``~/.cache``, ``__pycache__``, ``labels.cache``.
_CACHE = re.compile(r"caches?_*$", re.IGNORECASE)
#: Variables that name a cache, besides those with CACHE in their name.
_CACHE_HOMES = {"HF_HOME", "TORCH_HOME"}
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events that change what a path leads to: the positions, among the event's arguments, of the
#: path and of the descriptor of the folder that it is relative to, if the event has one.
_FOLLOWED = {"os.chmod": (0, 2), "os.chown": (0, 3), "os.truncate": (0, None), "os.utime": (0, 3)}
#: Those that change the entry of the last folder itself, which may be a link.
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
    """A write outside the launch's folders; nothing was changed.

    It is a ``PermissionError``, so that a library which can do without a file in the home
    directory goes on as it does where that is read-only.
    """


class WriteGuard:
    """Refuses changes outside ``roots``, in this process and those that it forks."""

    def __init__(self, roots: Iterable[str]) -> None:
        caches = [
            folder
            for name, folder in os.environ.items()
            if ("CACHE" in name or name in _CACHE_HOMES) and Path(folder).is_absolute()
        ]
        self._roots = [Path(root).resolve() for root in (*roots, *caches, *_KERNEL)]

    def install(self) -> None:
        """Watch this process until it ends: Python has no way to remove an audit hook."""
        sys.addaudithook(self._audit)

    def refuse(self, path: Any, folder: Any = None, *, follow: bool = True) -> None:
        """Raise OutsideWriteError if a change of ``path`` would be outside the roots.

        Args:
            path: a path as the standard library takes it; a file descriptor is always allowed.
            folder: the descriptor of the folder that a relative path begins at, or None or -1.
            follow: whether the change reaches the target of a link, not the link itself.
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
                " folder: it was stopped, and nothing was changed there. Let it write to a relative"
                " path inside its folder"
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
        ):  # that one fails by itself
            place, folder = _ENTRY[event]
            self.refuse(args[place], args[folder], follow=False)


guard: WriteGuard | None = None


def install(roots: Iterable[str]) -> None:
    """Guard this process, once; a forked rank and a started interpreter both come here."""
    global guard
    if guard is None:
        guard = WriteGuard(roots)
        guard.install()


def refuse(path: Any) -> None:
    """Raise OutsideWriteError if this process is guarded and ``path`` is outside its folders."""
    if guard is not None:
        guard.refuse(path)
