"""Messages for errors of the operating system, each with the file or limit and a fix."""

import errno
import shlex
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


def in_words(error: OSError) -> ScaleproofError:
    """Return an error for users that describes an error of the operating system."""
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
        place = error.filename2 or error.filename
        return files.FullDiskError(Path(str(place)).parent if place else Path.cwd())
    what = (error.strerror or str(error) or type(error).__name__).lower()
    where = str(error.filename or "")
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
