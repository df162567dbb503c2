"""Copies of the user's folder in which script launches work, and folders that launches share."""

import contextlib
import ctypes
import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from harness.base.errors import SpecError
from harness.base.formatting import si

#: Files that are compared after every launch; of more, those that are found first.
MOST_SHARED_FILES = 100_000
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


def shared_stamps(folder: Path, data: Sequence[str]) -> Stamps:
    """The stamps of the files that ``data`` names, folders included."""
    by_path: Stamps = {}
    for path in _files(folder, data):
        with contextlib.suppress(OSError):  # gone meanwhile: then it has no stamp
            facts = path.stat()
            stamp = Stamp(facts.st_ino, facts.st_mtime_ns, facts.st_size)
            by_path[os.path.relpath(path, folder)] = stamp
        if len(by_path) == MOST_SHARED_FILES:
            break
    return by_path


def changed_shared_files(before: Stamps, after: Stamps) -> list[str]:
    """Sentences on files that were changed, removed or put there."""
    sentences = [
        f"{path} was {'removed' if path not in after else 'changed'}"
        for path, stamp in before.items()
        if after.get(path) != stamp
    ]
    full = len(before) == MOST_SHARED_FILES or len(after) == MOST_SHARED_FILES
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


#: What a launch copies at most: bytes, and files.
MOST_BYTES = 2 << 30
MOST_FILES = 20_000
#: Folders that a training does not read.
LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


@dataclass(frozen=True)
class CopiedEntry:
    """A folder, a file or a link, ``name`` below the copied folder.

    ``source`` is what is copied; with ``link`` nothing is copied, and it is what is linked to.
    """

    name: Path
    source: Path
    link: str = ""


def entries(folder: Path, results: Path, data: Sequence[str] = ()) -> Iterator[CopiedEntry]:
    """The entries that a copy of ``folder`` consists of, folders before what is in them.

    ``results`` is where runs are written, and left out; ``data`` are paths that are shared.
    """
    shared = {(folder / path).resolve() for path in data}
    root = folder.resolve()
    yield from _inside(folder, {root: Path()}, results.resolve(), shared)


def _inside(
    here: Path, above: Mapping[Path, Path], results: Path, shared: set[Path]
) -> Iterator[CopiedEntry]:
    """The entries in ``here``; ``above`` are this folder and those that it is in, the root first:
    what they really are, and their names in the copy.
    """
    root = next(iter(above))
    name = list(above.values())[-1]
    for entry in sorted(os.scandir(here), key=lambda e: e.name):
        path = Path(entry.path)
        target = Path(os.path.realpath(entry.path))
        relative = name / entry.name
        if target in shared:
            yield CopiedEntry(relative, path, link=str(target))
        elif path.is_symlink() and target.is_relative_to(root):  # the copy's own, wherever that is
            yield CopiedEntry(
                relative, path, link=os.path.relpath(target, (root / relative).parent)
            )
        elif path.is_dir() and target in above:  # a link in a folder elsewhere that leads back
            link = os.path.relpath(root / above[target], (root / relative).parent)
            yield CopiedEntry(relative, path, link=link)
        elif path.is_dir():
            if entry.name in LEFT_OUT or results.is_relative_to(target):
                continue
            if root.is_relative_to(target):
                continue  # a link to a folder above: its copy would have no end
            if (path / "pyvenv.cfg").is_file():
                yield CopiedEntry(relative, path, link=str(target))
                continue
            yield CopiedEntry(relative, path)
            yield from _inside(path, {**above, target: relative}, results, shared)
        elif path.is_file() and os.access(path, os.R_OK):
            yield CopiedEntry(relative, path)


def copy(folder: Path, into: Path, results: Path, data: Sequence[str] = ()) -> None:
    """Make ``into`` look like ``folder``; nothing that is written there reaches the original."""
    into.mkdir(parents=True, exist_ok=True)
    for entry in entries(folder, results, data):
        target = into / entry.name
        if entry.link:
            target.symlink_to(entry.link)
        elif entry.source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copy2(entry.source, target)


@functools.lru_cache(maxsize=8)
def refuse_large(folder: Path, results: Path, data: tuple[str, ...]) -> None:
    """SpecError if copies of a folder would be too large, or a path of ``data`` is not there."""
    for path in data:
        if not (folder / path).exists():
            raise SpecError(
                f"--data {path}: no such file or folder",
                where=str(folder),
                expected="what the script only reads",
                fix=f"ls {folder}",
            )
    size: dict[str, int] = {}
    number: dict[str, int] = {}
    for entry in entries(folder, results, data):
        if not entry.link and entry.source.is_file():
            first = entry.name.parts[0]
            size[first] = size.get(first, 0) + entry.source.stat().st_size
            number[first] = number.get(first, 0) + 1
    num_bytes = sum(size.values())
    num_files = sum(number.values())
    if num_bytes <= MOST_BYTES and num_files <= MOST_FILES:
        return
    count = size if num_bytes > MOST_BYTES else number
    largest = max(count, key=lambda name: count[name])
    raise SpecError(
        f"{si(num_bytes, 'B')} in {num_files:,} files, and every launch works in a copy of them",
        where=str(folder),
        expected=f"at most {si(MOST_BYTES, 'B')} and {MOST_FILES:,} files that the script could"
        " write; what it only reads is named, and shared by all launches",
        fix=f"the same command with --data {largest}, if the script only reads it",
    )
