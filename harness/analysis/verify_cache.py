"""Results that this very code verified before: a report need not recompute thousands of launches.

A key is the digest of all that a verification reads: every file of a run, byte for byte, and every
file of this package. So nothing is remembered of a run, or by a version, that differs in one byte.
Only agreement is kept. ``verify``, and whatever makes something lasting of a run, recompute always.
"""

import functools
import hashlib
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from harness.analysis.reading import load
from harness.analysis.verify import unsealed
from harness.base import files
from harness.base.programs import PACKAGE
from harness.record import RunRecord, chain, store

#: What readers leave beside a record, and what says who is at it.
BESIDE = frozenset({"report.html", "proposal.svg", "proposal.md", ".lock"})
#: Packages that figures are computed with: their versions stand for their files.
COMPUTING = ("numpy", "scipy", "msgspec")
#: Keys that are kept; of more the oldest are forgotten.
MOST_KEYS = 20_000
#: Seconds after the start of a program in which it has imported what verifies.
_STARTING_S = 10.0
_BEGAN_S = time.time()
_PIECE = 1 << 20


def vouched(path: Path) -> tuple[RunRecord, str]:
    """A run, or its record.json, and why nobody vouches for it: empty if its figures follow from
    its samples. RecordError says what is wrong with it.
    """
    key = key_of(path)
    if known(key) and (whole := store.load_whole(path)) is not None:
        return whole, ""
    folder = path if path.is_dir() else path.parent
    links = chain.read(folder)
    run = load(path, links)
    doubt = unsealed(run, folder, links)
    if not doubt:
        keep(path, key)
    return run, doubt


def key_of(path: Path) -> str | None:
    """The key of a run as it lies there. None for another record beside its files, for a run with a
    link or no plain file in it, and where this package has changed since this program began: nobody
    knows which of both it runs.
    """
    folder = path if path.is_dir() else path.parent
    code = _code()
    if code is None or path not in (folder, folder / "record.json"):
        return None
    key = hashlib.sha256(code.encode())
    try:
        for name, place in _files(folder, ""):
            key.update(f"{name}\0".encode(errors="surrogateescape") + _of_file(place))
    except OSError:
        return None
    return key.hexdigest()


def known(key: str | None) -> bool:
    """Whether a run of this key was verified. An entry that others can have written is none."""
    folder = _folder()
    if folder is None or key is None:
        return False
    try:
        seen = (folder.lstat(), (folder / key).lstat())
    except OSError:
        return False
    return all(x.st_uid == os.geteuid() and not stat.S_IMODE(x.st_mode) & 0o022 for x in seen)


def keep(path: Path, key: str | None) -> None:
    """A run was verified, whose key was this one before it was read; nothing where it changed
    meanwhile, or where there is no room to remember it.
    """
    kept = _folder()
    if kept is None or key is None or key_of(path) != key:
        return
    with suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        (kept / key).touch(mode=0o600)
        entries = list(kept.iterdir())
        if len(entries) > MOST_KEYS:
            for old in sorted(entries, key=lambda entry: entry.stat().st_mtime)[: MOST_KEYS // 2]:
                old.unlink(missing_ok=True)


def _folder() -> Path | None:
    cache = files.cache_folder()
    return None if cache is None else cache / "verified"


def _files(folder: Path | str, below: str) -> Iterator[tuple[str, str]]:
    """(Name in the run, path) of every file, in one order; folders, too, as names. OSError for a
    link.
    """
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        name = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield f"{name}/", ""
            yield from _files(entry.path, f"{name}/")
        elif not entry.is_file(follow_symlinks=False):
            raise OSError(f"{name} is no plain file")
        elif name not in BESIDE:
            yield name, entry.path


def _of_file(path: str) -> bytes:
    """The digest of a file's bytes; of a folder none."""
    content = hashlib.sha256()
    if path:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a third of the time)
            while piece := file.read(_PIECE):
                content.update(piece)
    return content.digest()


@functools.cache
def _code() -> str | None:
    """The digest of all files of this package, with the versions of what they compute with."""
    versions = [f"{name} {metadata.version(name)}" for name in COMPUTING]
    content = hashlib.sha256("\n".join((platform.python_version(), *versions)).encode())
    for path in sorted(p for p in PACKAGE.rglob("*") if "__pycache__" not in p.parts):
        if path.is_file():
            if path.stat().st_ctime > _BEGAN_S - _STARTING_S:
                return None
            content.update(f"{path.relative_to(PACKAGE)}\0".encode() + _of_file(str(path)))
    return content.hexdigest()
