"""Copy a user's folder for launches of a script, and find changes of files that launches share."""

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from harness.base.errors import SpecError
from harness.base.formatting import si

#: Maximum number of shared files that are compared after every launch. Further files are not
#: compared.
MOST_SHARED_FILES = 100_000


class Stamp(NamedTuple):
    """Facts about a file that change if the file is written to or replaced."""

    inode: int
    modified_ns: int
    size: int


#: A stamp for each file, by the file's path relative to the user's folder.
Stamps: TypeAlias = dict[str, Stamp]


def shared_stamps(folder: Path, data: Sequence[str]) -> Stamps:
    """Return a stamp (inode, modification time, size) of every file in the paths ``data``."""
    by_path: Stamps = {}
    for path in _files(folder, data):
        with contextlib.suppress(OSError):  # the file was removed meanwhile, so it has no stamp
            facts = path.stat()
            stamp = Stamp(facts.st_ino, facts.st_mtime_ns, facts.st_size)
            by_path[os.path.relpath(path, folder)] = stamp
        if len(by_path) == MOST_SHARED_FILES:
            break
    return by_path


def changed_shared_files(before: Stamps, after: Stamps) -> list[str]:
    """Return a sentence for each file that was changed, removed or added."""
    sentences = [
        f"{path} was {'removed' if path not in after else 'changed'}"
        for path, stamp in before.items()
        if after.get(path) != stamp
    ]
    full = len(before) == MOST_SHARED_FILES or len(after) == MOST_SHARED_FILES
    return sentences + [f"{path} was written" for path in after if path not in before and not full]


def _files(folder: Path, data: Sequence[str]) -> Iterator[Path]:
    """Yield the files that ``data`` names, and the files in the folders that it names."""
    for name in data:
        path = folder / name
        if path.is_dir():
            for here, folders, names in os.walk(path):
                folders[:] = sorted(set(folders) - LEFT_OUT)
                yield from (Path(here) / n for n in sorted(names))
        else:
            yield path


#: Maximum number of bytes that one launch may copy.
MOST_BYTES = 2 << 30
#: Maximum number of files that one launch may copy.
MOST_FILES = 20_000
#: Names of folders that are not copied, because trainings do not read these folders.
LEFT_OUT = frozenset({".git", ".hg", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


@dataclass(frozen=True)
class CopiedEntry:
    """A folder, file or link in a copy; ``name`` is its path relative to the copied folder.

    ``source`` is the original. If ``link`` is set, nothing is copied, and the entry becomes a
    symbolic link to that path.
    """

    name: Path
    source: Path
    link: str = ""


def entries(folder: Path, results: Path, data: Sequence[str] = ()) -> Iterator[CopiedEntry]:
    """Yield the entries of a copy of ``folder``. A folder is yielded before its content.

    ``results`` is the folder of runs, which is not copied. The paths in ``data`` become links to
    the originals.
    """
    shared = {(folder / path).resolve() for path in data}
    root = folder.resolve()
    yield from _inside(folder, {root: Path()}, results.resolve(), shared)


def _inside(
    here: Path, above: Mapping[Path, Path], results: Path, shared: set[Path]
) -> Iterator[CopiedEntry]:
    """Yield the entries in the folder ``here``.

    ``above`` maps the resolved paths of this folder and of each folder above it to their names in
    the copy. The root is the first entry.
    """
    root = next(iter(above))
    name = list(above.values())[-1]
    for entry in sorted(os.scandir(here), key=lambda e: e.name):
        path = Path(entry.path)
        target = Path(os.path.realpath(entry.path))
        relative = name / entry.name
        if target in shared:
            yield CopiedEntry(relative, path, link=str(target))
        elif path.is_symlink() and target.is_relative_to(root):  # link to the copied file or folder
            yield CopiedEntry(
                relative, path, link=os.path.relpath(target, (root / relative).parent)
            )
        elif path.is_dir() and target in above:  # a link to a folder that contains this one
            link = os.path.relpath(root / above[target], (root / relative).parent)
            yield CopiedEntry(relative, path, link=link)
        elif path.is_dir():
            if entry.name in LEFT_OUT or results.is_relative_to(target):
                continue
            if root.is_relative_to(target):
                continue  # such a link would be followed without end
            if (path / "pyvenv.cfg").is_file():
                yield CopiedEntry(relative, path, link=str(target))
                continue
            yield CopiedEntry(relative, path)
            yield from _inside(path, {**above, target: relative}, results, shared)
        elif path.is_file() and os.access(path, os.R_OK):
            yield CopiedEntry(relative, path)


def copy(folder: Path, into: Path, results: Path, data: Sequence[str] = ()) -> None:
    """Copy ``folder`` to ``into``. Writing to copied files does not change the originals."""
    into.mkdir(parents=True, exist_ok=True)
    for entry in entries(folder, results, data):
        target = into / entry.name
        if entry.link:
            target.symlink_to(entry.link)
        elif entry.source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copy2(entry.source, target)


def refuse_missing(folder: Path, option: str, paths: Sequence[str]) -> None:
    """Raise SpecError if one of the paths that an option names does not exist."""
    for path in paths:
        if not (folder / path).exists():
            raise SpecError(
                f"{option} {path}: no such file or folder",
                where=str(folder),
                expected="an existing path",
                fix=f"ls {folder}",
            )


@functools.lru_cache(maxsize=8)
def refuse_large(folder: Path, results: Path, data: tuple[str, ...]) -> None:
    """Raise SpecError if copies of a folder would be too large."""
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
        f"every launch would copy {si(num_bytes, 'B')} in {num_files:,} files",
        where=str(folder),
        expected=f"at most {si(MOST_BYTES, 'B')} and {MOST_FILES:,} files that the script may"
        " write; paths in --data, which the script only reads, are not copied",
        fix=f"the same command with --data {largest}, if the script only reads it",
    )
