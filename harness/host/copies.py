"""Copies of a user's folder: every launch of a script works in one of its own.

Whatever a training could write is copied, so that nothing of the user's is written to. Shared are
only an environment's interpreter, and what the user says that the script only reads.
"""

import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import SpecError
from harness.base.numbers import si

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
