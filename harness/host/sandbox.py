"""Make all files read-only for a process and its children, except in a few folders.

The process gets a mount namespace of its own, in which every mounted file system is read-only and
the writable folders are mounted once more on top. The kernel then refuses every write, whichever
program or library makes it. Other processes are not affected. This needs the rights of root, or a
kernel that gives users namespaces of their own.
"""

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Flags of the system calls unshare(2) and mount(2).
_NEW_NAMESPACE = 0x0002_0000  # CLONE_NEWNS
_NEW_USERS = 0x1000_0000  # CLONE_NEWUSER
_READ_ONLY = 0x1
_REMOUNT = 0x20
_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 0x4_0000
#: The flag of each option in ``/proc/self/mountinfo`` that a remount has to repeat. A process in a
#: user namespace may not clear these flags.
_FLAGS = {
    "nosuid": 0x2, "nodev": 0x4, "noexec": 0x8, "noatime": 0x400, "nodiratime": 0x800,
    "relatime": 0x20_0000,
}  # fmt: skip
#: File systems of the kernel, which hold devices, shared memory and settings of processes, but no
#: files of the user.
_KERNEL = ("/dev", "/proc", "/sys")
#: A character in a path of mountinfo that is written as three octal digits.
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system: where it is, and its flags for mount(2)."""

    point: str
    flags: int


def enter(writable: Sequence[Path], read_only: Sequence[Path] = ()) -> bool:
    """Make all files read-only but those in ``writable``; return whether the kernel allows it.

    The paths ``read_only`` are read-only even inside a writable folder. All paths have to exist.
    The process must have one thread only. It keeps its user and its access to files.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not _unshared(libc) or libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) != 0:
        return False
    before = list(_mounts())
    kept = [str(path.resolve()) for path in writable]
    for path in kept:
        if libc.mount(os.fsencode(path), os.fsencode(path), None, _BIND | _RECURSIVE, None) != 0:
            return False
    done = [
        _remounted(libc, mount) for mount in before if not _below(mount.point, (*_KERNEL, *kept))
    ]
    return all(done) and all(_shut(libc, str(path.resolve())) for path in read_only)


def _unshared(libc: ctypes.CDLL) -> bool:
    """Enter a new mount namespace, in a new user namespace if necessary."""
    user = os.getuid()
    group = os.getgid()
    if libc.unshare(_NEW_NAMESPACE) == 0:
        return True
    if libc.unshare(_NEW_NAMESPACE | _NEW_USERS) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
    except OSError:
        return False
    return True


def _mounts() -> Iterator[Mount]:
    """Yield the file systems that are mounted and writable."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point, options = line.split(" ")[4:6]
        names = options.split(",")
        if "ro" not in names:
            path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), point)
            yield Mount(path, sum(flag for name, flag in _FLAGS.items() if name in names))


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _remounted(libc: ctypes.CDLL, mount: Mount) -> bool:
    """Make a mounted file system read-only, and return whether that worked.

    A file system that another one hides cannot be reached, and needs no remount.
    """
    flags = _REMOUNT | _BIND | _READ_ONLY | mount.flags
    done: bool = libc.mount(None, os.fsencode(mount.point), None, flags, None) == 0
    return done or not os.access(mount.point, os.W_OK)


def _shut(libc: ctypes.CDLL, path: str) -> bool:
    """Mount a path read-only over itself, and return whether that worked."""
    if libc.mount(os.fsencode(path), os.fsencode(path), None, _BIND | _RECURSIVE, None) != 0:
        return False
    still_writable = [mount for mount in _mounts() if mount.point == path]
    return all(_remounted(libc, mount) for mount in still_writable[-1:])
