"""What the system refuses, in words: what it was, where, and what helps."""

import errno
from pathlib import Path

from harness.base.errors import ScaleproofError

#: Errors by what was expected there, and what to type.
_KNOWN = {
    errno.ENOTDIR: ("a folder, and this is a file", "--results another/folder"),
    errno.EEXIST: ("a folder, and this is a file", "--results another/folder"),
    errno.EISDIR: ("a file, and this is a folder", "name a file"),
    errno.EROFS: ("a file system that may be written to", "--results /a/folder/of/yours"),
    errno.EACCES: ("a place that you may write to", "--results /a/folder/of/yours"),
    errno.EPERM: ("a place that you may write to", "--results /a/folder/of/yours"),
    errno.EMFILE: ("more open files at once", "ulimit -n 4096"),
    errno.ENFILE: ("more open files at once", "ulimit -n 4096"),
    errno.EAGAIN: ("more processes at once", "ulimit -u"),
    errno.ENOMEM: ("more memory", "free -h"),
    errno.EIO: ("a disk that answers", "dmesg | tail"),
    errno.ENAMETOOLONG: ("a shorter name", "--results a/shorter/one"),
}


def in_words(error: OSError) -> ScaleproofError:
    """The same error as every other is told: never a bare number."""
    if error.errno == errno.ENOENT and not _standing():
        return ScaleproofError(
            "the folder that this was started in is gone",
            expected="a folder that exists",
            fix="cd ~",
        )
    what = (error.strerror or str(error) or type(error).__name__).lower()
    where = str(error.filename or "")
    expected, fix = _KNOWN.get(error.errno or 0, ("", "scaleproof doctor"))
    return ScaleproofError(what, where=where, expected=expected, fix=fix)


def _standing() -> bool:
    """Whether there is a working folder."""
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False
