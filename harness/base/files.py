"""Write files whole or not at all, lock a folder, and compute digests of files."""

import errno
import fcntl
import functools
import hashlib
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from harness.base.errors import Exit, RecordError, ScaleproofError, SpecError
from harness.base.programs import PACKAGE


def cache_folder() -> Path | None:
    """The folder of this program; None for a user without a home."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "scaleproof"
    home = os.environ.get("HOME")
    return Path(home) / ".cache/scaleproof" if home else None


#: Digits that are kept.
DIGITS = 16


def digest_of_bytes(content: bytes) -> str:
    """The first digits of its sha256."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def digest_of_file(path: Path) -> str:
    """The digest of a file's bytes; empty if it is gone."""
    try:
        return digest_of_bytes(path.read_bytes())
    except OSError:
        return ""


@functools.cache
def digest_of_package() -> str:
    """The digest of all Python files of this package, as they were when first asked for here."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()[:DIGITS]


LOCK_FILE = ".lock"
#: What a file system says that has no locks: there nobody can be kept out.
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """A folder, held by this process until ``release()``, or until it is gone.

    Raises RecordError where another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace") or "another process"
            self.release()
            raise RecordError(
                f"this run is being measured by {holder}",
                where=str(folder),
                expected="one program at a time",
                fix=f"scaleproof report {folder}",
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)


#: Bytes below which a disk counts as full when a rank has just failed, and before a run begins:
#: its chain must have room for what is measured, and the record for an end.
FLOOR_BYTES = 64 << 10
ROOM_BYTES = 128 << 10
#: A run has one in its folder.
CHAIN = "chain.jsonl"
#: What a file system says that is full, or whose user's share of it is.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class UnwrittenError(ScaleproofError):
    """Results that could not be written: it ends the run, which can be resumed."""

    exit = Exit.ERROR


class FullDiskError(UnwrittenError):
    """No room for results."""

    def __init__(self, folder: Path, *, begun: bool = True) -> None:
        of_run = (folder / CHAIN).exists()
        fix = "rm -r OLD_RUNS, and run again: nothing was launched"
        if begun:
            then = f"scaleproof run --resume {folder}" if of_run else "the same command again"
            fix = f"rm -r OLD_RUNS, then {then}"
        super().__init__(
            "no space is left on this disk",
            where=str(folder),
            expected="a few MB for a run; whatever was measured is kept",
            fix=fix,
        )


def unwritten(folder: Path, why: OSError) -> UnwrittenError:
    """The error to raise where a file of a run could not be written."""
    if why.errno in NO_ROOM:
        return FullDiskError(folder)
    return UnwrittenError(
        f"cannot be written: {why.strerror or why}",
        where=str(folder),
        expected="a disk that takes what is written; whatever was measured is kept",
        fix=f"scaleproof run --resume {folder}",
    )


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """An OSError for want of space becomes a FullDiskError."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise FullDiskError(folder) from None


def refuse_full(folder: Path, *, begun: bool = True) -> None:
    """FullDiskError if there is no room: a launch that failed now says nothing of its case; before
    a run has ``begun``, nothing of it would be there to go on with.
    """
    if shutil.disk_usage(folder).free < (FLOOR_BYTES if begun else ROOM_BYTES):
        raise FullDiskError(folder, begun=begun)


def put(path: Path, body: bytes, option: str) -> None:
    """Write what a user asked for with this option; ScaleproofError where that cannot be.

    What is no file, as ``/dev/stdout``, is written to; a link stays one.
    """
    try:
        with writing_to(path.parent):
            if path.exists() and not path.is_file():
                path.write_bytes(body)
            else:
                write({path.resolve(): body})
    except OSError as error:
        raise SpecError(
            f"{option} {path}: cannot be written: {error.strerror or error}",
            expected="a file in a folder of yours",
            fix=f"{option} ./{path.name}",
        ) from None


def write(texts: Mapping[Path, str | bytes]) -> None:
    """Write files whole or not at all, and all of them or none."""
    with ExitStack() as stack:
        for path, text in texts.items():
            handle = stack.enter_context(whole(path))
            handle.write(text if isinstance(text, bytes) else text.encode())
            _to_disk(handle)  # before the first of them has its name


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that is written whole or not at all: temporary, to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as handle:
            yield handle
            _to_disk(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _to_disk(handle: IO[bytes]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
