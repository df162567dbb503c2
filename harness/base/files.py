"""Atomic writing of files, locks of folders, and digests of files."""

import errno
import fcntl
import functools
import hashlib
import os
import secrets
import shutil
import stat
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from harness.base.errors import Exit, RecordError, ScaleproofError, SpecError
from harness.base.programs import PACKAGE


def cache_folder() -> Path | None:
    """Return the cache folder of this program; None for a user without a home folder."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "scaleproof"
    home = os.environ.get("HOME")
    return Path(home) / ".cache/scaleproof" if home else None


#: Number of hex digits of a digest that are kept.
DIGITS = 16


def digest_of_bytes(content: bytes) -> str:
    """Return the first ``DIGITS`` hex digits of the sha256 of these bytes."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def digest_of_file(path: Path) -> str:
    """Return the digest of a file, or "" if it cannot be read."""
    try:
        return digest_of_bytes(path.read_bytes())
    except OSError:
        return ""


@functools.cache
def digest_of_package() -> str:
    """Return the digest of all Python files of this package at the time of the first call."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()[:DIGITS]


#: The file in a folder that a ``Lock`` locks. It contains the id of the process with the lock.
LOCK_FILE = ".lock"
#: Errors of a file system that does not support locks. The lock then has no effect.
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """A lock on a folder that this process holds until ``release()``, or until it ends.

    Raises RecordError if another process holds the lock.
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
                expected="a run that no other process is measuring",
                fix=f"scaleproof report {folder}",
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)


#: Free bytes below which a disk counts as full during a run. The rest is needed to write further
#: measurements to the chain, and to write the final record.
FLOOR_BYTES = 64 << 10
#: Free bytes below which a disk counts as full before a run begins.
ROOM_BYTES = 128 << 10
#: The file of a run's chain in its folder.
CHAIN = "chain.jsonl"
#: Errors of a file system that is full, or on which the user's quota is used up.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class UnwrittenError(ScaleproofError):
    """Results cannot be written. The run ends and can be resumed."""

    exit = Exit.ERROR


class FullDiskError(UnwrittenError):
    """The disk has no space for results."""

    def __init__(self, folder: Path, *, begun: bool = True) -> None:
        fix = "rm -r OLD_RUNS, and run again; nothing was launched"
        if begun:
            fix = f"rm -r OLD_RUNS, then {_again(folder)}"
        super().__init__(
            "no space is left on this disk",
            where=str(folder),
            expected="a few MB of free disk space for a run; all measurements so far are kept",
            fix=fix,
        )


def unwritten(folder: Path, why: OSError) -> UnwrittenError:
    """Return the error to raise if a file of a run could not be written."""
    if why.errno in NO_ROOM:
        return FullDiskError(folder)
    return UnwrittenError(
        f"cannot be written: {why.strerror or why}",
        where=str(folder),
        expected="a disk that can be written to; all measurements so far are kept",
        fix=_again(folder),
    )


def _again(folder: Path) -> str:
    """Return how to go on after a file in this folder could not be written.

    Only runs with a plan can be resumed.
    """
    try:
        planned = b'"kind":"plan"' in (folder / CHAIN).read_bytes()
    except OSError:
        planned = False
    return f"scaleproof run --resume {folder}" if planned else "the same command again"


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Convert an OSError for lack of disk space to a FullDiskError."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise FullDiskError(folder) from None


def refuse_full(folder: Path, *, begun: bool = True) -> None:
    """Raise FullDiskError if the disk is almost full.

    If this check fails after a launch has failed, the cause of the failure is the disk and not the
    case. More free space is required before a run has ``begun``, because a run without a chain
    cannot be resumed.
    """
    if shutil.disk_usage(folder).free < (FLOOR_BYTES if begun else ROOM_BYTES):
        raise FullDiskError(folder, begun=begun)


def opened(path: Path) -> IO[bytes]:
    """Open a regular file to read it.

    Raises OSError for anything else: a pipe, for example, could block its reader forever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Is no regular file", str(path))
    return open(descriptor, "rb")  # noqa: PTH123  (a descriptor, no path)


def put(path: Path, body: bytes, option: str) -> None:
    """Write a file that a user requested with this option. Raise SpecError if that fails.

    A path that is not a regular file, such as ``/dev/stdout``, is written directly instead of being
    replaced. If the path is a symbolic link, its target is written.
    """
    try:
        with writing_to(path.parent):
            if path.exists() and not path.is_file():
                path.write_bytes(body)
            else:
                write({path.resolve(): body})
    except OSError as error:
        too_large = error.errno == errno.EFBIG
        place = "a file in a folder that you may write to"
        raise SpecError(
            f"{option} {path}: cannot be written: {error.strerror or error}",
            expected="a higher limit of file sizes" if too_large else place,
            fix="ulimit -f unlimited" if too_large else f"{option} ./{path.name}",
        ) from None


def write(texts: Mapping[Path, str | bytes]) -> None:
    """Write all files or none of them. Each file is replaced atomically."""
    with ExitStack() as stack:
        for path, text in texts.items():
            handle = stack.enter_context(whole(path))
            handle.write(text if isinstance(text, bytes) else text.encode())
            _to_disk(handle)  # the first file is renamed only after all files are on disk


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that is written completely or not at all.

    The content is written to a temporary file, which is synchronized to disk and then renamed. The
    file is new and has a random name, because somebody else could have put a link in its place.
    Raises FileExistsError if a device or a folder has this path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is no regular file", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as handle:
            yield handle
            _to_disk(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _to_disk(handle: IO[bytes]) -> None:
    """Flush a file and wait until it is on disk."""
    handle.flush()
    os.fsync(handle.fileno())
