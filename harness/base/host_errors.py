"""Messages for errors of the operating system, each with the file or limit and a fix."""

import errno
import os
import resource
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness.base import files
from harness.base.errors import HostError, ScaleproofError

#: For each error number, the expected state and the fix. For other errors the fix is
#: ``scaleproof check``.
_KNOWN = {
    errno.ENOTDIR: ("a folder, but this is a file", "--results another/folder"),
    errno.EEXIST: ("a folder, but this is a file", "--results another/folder"),
    errno.EROFS: ("a writable file system", "--results /a/folder/of/yours"),
    errno.EACCES: ("a path that you have access to", "ls -ld {}"),
    errno.EPERM: ("a path that you have access to", "ls -ld {}"),
    errno.EMFILE: ("a higher limit of open files", "ulimit -n 4096"),
    errno.EFBIG: ("a higher limit of file sizes", "ulimit -f unlimited"),
    errno.ENAMETOOLONG: ("a shorter name", "--results a/shorter/one"),
}
#: The folder in which processes share memory.
_SHARED = Path("/dev/shm")
#: The least address space in bytes and the fewest open files with which commands can work.
LEAST_SPACE = 256 << 20
LEAST_FILES = 32


def refuse_narrow_limits() -> None:
    """Raise HostError if a limit of this process is so low that libraries would abort or crash."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= space < LEAST_SPACE:
        raise HostError(
            f"the address space of this process is limited to {space >> 20} MiB",
            expected=f"at least {LEAST_SPACE >> 20} MiB (ulimit -v)",
            fix="ulimit -v unlimited",
        )
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_files < LEAST_FILES:
        raise HostError(
            f"this process may open {num_files} files at once",
            expected=f"at least {LEAST_FILES} (ulimit -n)",
            fix="ulimit -n 4096",
        )


def full(words: Iterable[str]) -> files.FullDiskError | None:
    """Return an error if one of the paths among ``words``, or where programs write, has no room."""
    places = [*map(Path, words), Path.cwd(), Path(tempfile.gettempdir())]
    for place in places:
        folder = next((p for p in (place, *place.parents) if p.is_dir()), None)
        if folder is not None and _is_full(folder):
            return files.FullDiskError(place if place.is_dir() else folder)
    return None


def _is_full(folder: Path) -> bool:
    """Return whether a file system for data is full. Read-only ones do not count."""
    state = os.statvfs(folder)
    return state.f_blocks > 0 and not state.f_bavail and not state.f_flag & os.ST_RDONLY


def _is_read_only(folder: Path) -> bool:
    return folder.is_dir() and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def in_words(error: OSError, words: Iterable[str] = ()) -> ScaleproofError:
    """Return an error for users that describes an error of the operating system.

    ``words`` are those of the command, whose paths are tried if the error names no file.
    """
    if error.errno == errno.ENOENT and not _standing():
        return ScaleproofError(
            "the working folder no longer exists",
            expected="a folder that exists",
            fix="cd ~",
        )
    if "temporary directory" in str(error):  # of the module tempfile
        return ScaleproofError(
            str(error).lower(),
            expected="a folder for temporary files that is writable",
            fix="export TMPDIR=/a/folder/of/yours",
        )
    if error.errno in files.NO_ROOM:
        # If the error names two files, the second one is the file that was written.
        if place := error.filename2 or error.filename:
            return files.FullDiskError(Path(str(place)).parent)
        return full(words) or files.FullDiskError(Path.cwd())
    what = (error.strerror or str(error) or type(error).__name__).lower()
    where = str(error.filename or "")
    if error.errno == errno.EROFS and not where and _is_read_only(_SHARED):
        fix = f"mount -o remount,rw {_SHARED}"  # of the module multiprocessing
        return ScaleproofError(what, where=str(_SHARED), expected="shared memory", fix=fix)
    expected, fix = _KNOWN.get(error.errno or 0, ("", "scaleproof check"))
    return ScaleproofError(
        what, where=where, expected=expected, fix=fix.format(shlex.quote(where or "."))
    )


def by_host(error: BaseException) -> HostError | None:
    """Return an error for users if this environment caused the exception, otherwise None.

    The environment is the cause if memory is missing, a library cannot be loaded, or the locale
    cannot encode a text. Such an exception says nothing about the record that was read.
    """
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return HostError(
            f"out of memory{f': {error}' if str(error) else ''}",
            expected="more memory than the limit of this process (ulimit -v, a container's limit)",
            fix="ulimit -v; free -h",
        )
    if isinstance(error, ImportError):
        return HostError(
            f"a library cannot be loaded: {error}",
            expected="a complete installation, and enough memory to load it",
            fix="python -c 'import numpy, scipy'; ulimit -v",
        )
    if isinstance(error, UnicodeEncodeError) or (
        isinstance(error, UnicodeDecodeError) and error.encoding == "ascii"
    ):
        return HostError(
            f"the encoding of this locale, {error.encoding}, cannot represent the text",
            expected="UTF-8",
            fix="export PYTHONUTF8=1, and run the same command again",
        )
    return None


def _standing() -> bool:
    """Return whether the working folder exists."""
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False
