"""Folders that all launches of a script share (``--data``): they are read-only, and compared.

A namespace of a process's own shows it these paths read-only; nobody else is touched. Where the
kernel does not allow that, a change is seen after the launch that made it.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from harness.host.copies import LEFT_OUT

#: Files that are compared after every launch; of more, those that are found first.
MOST_FILES = 100_000
_NEW_NAMESPACE = 0x0002_0000  # CLONE_NEWNS
_NEW_USERS = 0x1000_0000  # CLONE_NEWUSER
_READ_ONLY = 0x1
_REMOUNT = 0x20
_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 0x4_0000
#: statvfs's flags that are mount's, too, and those that have another number there.
_SAME_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800
_RELATIVE_ATIME = (0x1000, 0x20_0000)


class Stamp(NamedTuple):
    """The stamp of a file, which changes when it is written to, or another is put in its place."""

    inode: int
    modified_ns: int
    size: int


#: Of every file, by its path below the folder that it is shared from.
Stamps: TypeAlias = dict[str, Stamp]


def stamps(folder: Path, data: Sequence[str]) -> Stamps:
    """The stamps of the files that ``data`` names, folders included."""
    by_path: Stamps = {}
    for path in _files(folder, data):
        with contextlib.suppress(OSError):  # gone meanwhile: then it has no stamp
            facts = path.stat()
            stamp = Stamp(facts.st_ino, facts.st_mtime_ns, facts.st_size)
            by_path[os.path.relpath(path, folder)] = stamp
        if len(by_path) == MOST_FILES:
            break
    return by_path


def changed(before: Stamps, after: Stamps) -> list[str]:
    """Sentences on files that were changed, removed or put there."""
    sentences = [
        f"{path} was {'removed' if path not in after else 'changed'}"
        for path, stamp in before.items()
        if after.get(path) != stamp
    ]
    full = len(before) == MOST_FILES or len(after) == MOST_FILES
    return sentences + [f"{path} was written" for path in after if path not in before and not full]


def _files(folder: Path, data: Sequence[str]) -> Iterator[Path]:
    for name in data:
        path = folder / name
        if path.is_dir():
            for here, folders, names in os.walk(path):
                folders[:] = sorted(set(folders) - LEFT_OUT)
                yield from (Path(here) / n for n in sorted(names))
        else:
            yield path


def read_only(paths: Sequence[Path]) -> bool:
    """Show these paths read-only to this process and all that it starts; whether that was allowed.

    The process must have one thread. It keeps its user, and its rights to files.
    """
    if not paths:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NAMESPACE) != 0:
        if libc.unshare(_NEW_NAMESPACE | _NEW_USERS) != 0:
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
        except OSError:
            return False
    if libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) != 0:
        return False
    return all(_mounted(libc, os.fsencode(path.resolve())) for path in paths)


def _mounted(libc: ctypes.CDLL, path: bytes) -> bool:
    if libc.mount(path, path, None, _BIND | _RECURSIVE, None) != 0:
        return False
    flags = os.statvfs(path).f_flag
    same_flags = flags & _SAME_FLAGS  # an unprivileged namespace may not take these away
    same_flags |= _RELATIVE_ATIME[1] if flags & _RELATIVE_ATIME[0] else 0
    return bool(libc.mount(None, path, None, _REMOUNT | _BIND | _READ_ONLY | same_flags, None) == 0)
