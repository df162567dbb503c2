"""A cache of verified runs, so that a report need not recompute thousands of launches.

A key is the digest of everything that a verification reads: every file of the run and every file of
this package. If a single byte of either changes, the key changes. Only successful verifications are
stored. ``verify``, and commands that publish or archive a run, always recompute.
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

#: Files in a run's folder that are not part of the record: the output of reports, and the lock.
BESIDE = frozenset({"report.html", "proposal.svg", "proposal.md", ".lock"})
#: Packages that compute the values. A key contains their versions instead of their files.
COMPUTING = ("numpy", "scipy", "msgspec")
#: Largest number of stored keys. If there are more, the oldest keys are deleted.
MOST_KEYS = 20_000
#: Largest time in seconds from the start of a program to ``_BEGAN_S``. A file that changed within
#: it may differ from the loaded code.
_STARTING_S = 10.0
#: Time at which this module was imported, in seconds since the epoch.
_BEGAN_S = time.time()
#: Bytes that are read from a file at a time.
_PIECE = 1 << 20


def vouched(path: Path) -> tuple[RunRecord, str]:
    """Return a run, and the reason why it is not verified, which is empty if it is verified.

    ``path`` is the folder of the run or its record.json. Raise RecordError for an invalid record.
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
    """Return the key of a run's current files, or None if no key can be computed.

    A record with another file name, and a run that contains a link or a special file, have no key.
    If this package changed after the program started, there is no key either, because the loaded
    code may differ from the files.
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
    """Return whether a run with this key was verified.

    An entry of the cache is ignored if another user could have written it.
    """
    folder = _folder()
    if folder is None or key is None:
        return False
    try:
        seen = (folder.lstat(), (folder / key).lstat())
    except OSError:
        return False
    return all(x.st_uid == os.geteuid() and not stat.S_IMODE(x.st_mode) & 0o022 for x in seen)


def keep(path: Path, key: str | None) -> None:
    """Store that a run was verified; ``key`` was computed before the run was read.

    Store nothing if the run has changed since then, or if the cache cannot be written.
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
    """Yield (name within the run, path) of every file and folder, sorted.

    The path of a folder is empty. Raise OSError for a link or a special file.
    """
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        name = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield f"{name}/", ""
            yield from _files(entry.path, f"{name}/")
        elif not entry.is_file(follow_symlinks=False):
            raise OSError(f"{name} is not a regular file")
        elif name not in BESIDE:
            yield name, entry.path


def _of_file(path: str) -> bytes:
    """Return the digest of a file's content; a folder, with an empty path, has no content."""
    content = hashlib.sha256()
    if path:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a third of the time)
            while piece := file.read(_PIECE):
                content.update(piece)
    return content.digest()


@functools.cache
def _code() -> str | None:
    """Return the digest of this package's files and of the versions in COMPUTING.

    Return None if a file changed after the program started.
    """
    versions = [f"{name} {metadata.version(name)}" for name in COMPUTING]
    content = hashlib.sha256("\n".join((platform.python_version(), *versions)).encode())
    for path in sorted(p for p in PACKAGE.rglob("*") if "__pycache__" not in p.parts):
        if path.is_file():
            if path.stat().st_ctime > _BEGAN_S - _STARTING_S:
                return None
            content.update(f"{path.relative_to(PACKAGE)}\0".encode() + _of_file(str(path)))
    return content.hexdigest()
