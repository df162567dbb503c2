"""Errors of the operating system in words: the file or limit, the place, and what helps."""

import errno
import shlex
from pathlib import Path

from harness.base import files
from harness.base.errors import HostError, ScaleproofError

#: Errors by what was expected there, and what to type. Of others ``doctor`` may know more.
_KNOWN = {
    errno.ENOTDIR: ("a folder, and this is a file", "--results another/folder"),
    errno.EEXIST: ("a folder, and this is a file", "--results another/folder"),
    errno.EROFS: ("a file system that may be written to", "--results /a/folder/of/yours"),
    errno.EACCES: ("a place that you may use", "ls -ld {}"),
    errno.EPERM: ("a place that you may use", "ls -ld {}"),
    errno.EMFILE: ("more open files at once", "ulimit -n 4096"),
    errno.ENAMETOOLONG: ("a shorter name", "--results a/shorter/one"),
}


def in_words(error: OSError) -> ScaleproofError:
    """Words the error as every other is worded: never a bare number."""
    if error.errno == errno.ENOENT and not _standing():
        return ScaleproofError(
            "the folder that this was started in is gone",
            expected="a folder that exists",
            fix="cd ~",
        )
    if error.errno in files.NO_ROOM:
        place = error.filename2 or error.filename  # of two the second is the one that is written
        return files.FullDiskError(Path(str(place)).parent if place else Path.cwd())
    what = (error.strerror or str(error) or type(error).__name__).lower()
    where = str(error.filename or "")
    expected, fix = _KNOWN.get(error.errno or 0, ("", "scaleproof check"))
    return ScaleproofError(
        what, where=where, expected=expected, fix=fix.format(shlex.quote(where or "."))
    )


def by_host(error: BaseException) -> HostError | None:
    """Return the error of an environment that lacks something, or None if it is none of those.

    Memory, a library that cannot be mapped into it, and a locale that cannot encode a text say
    nothing of what was being read.
    """
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return HostError(
            f"out of memory{f': {error}' if str(error) else ''}",
            expected="more memory than this process may use (ulimit -v, a container's limit)",
            fix="ulimit -v; free -h",
        )
    if isinstance(error, ImportError):
        return HostError(
            f"a library cannot be loaded: {error}",
            expected="an installation that is whole, and memory for it",
            fix="python -c 'import numpy, scipy'; ulimit -v",
        )
    if isinstance(error, UnicodeEncodeError) or (
        isinstance(error, UnicodeDecodeError) and error.encoding == "ascii"
    ):
        return HostError(
            f"this locale's encoding is {error.encoding}, which cannot hold the text",
            expected="UTF-8",
            fix="PYTHONUTF8=1 and the same command",
        )
    return None


def _standing() -> bool:
    """Whether there is a working folder."""
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False
