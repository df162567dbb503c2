"""Errors, exit statuses, and how errors of the operating system are worded."""

import difflib
import errno
import shlex
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

from harness.base import files
from harness.base.formatting import plain


class Exit(IntEnum):
    """Exit status of both programs; 0 only if something was judged and all of it passed."""

    PASSED = 0
    FAILED = 1
    INTERRUPTED = 2
    INTERNAL = 3
    USAGE = 4
    NOTHING_JUDGED = 5
    INCONCLUSIVE = 10
    ERROR = 11


class ScaleproofError(Exception):
    """One clear message for a user. ``fix`` ends with the command to run next."""

    exit = Exit.USAGE

    def __init__(self, what: str, *, where: str = "", expected: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.fix = fix
        lines = [what if not where else f"{where}: {what}"]
        if expected:
            lines.append(f"  expected  {expected}")
        if fix:
            lines.append(f"  try       {fix}")
        super().__init__("\n".join(lines))


class SpecError(ScaleproofError):
    """A case, plan or option that cannot be run as asked."""


class ConfigError(ScaleproofError):
    """One or more mistakes in a TOML file, all listed."""


class RecordError(ScaleproofError):
    """A record that cannot be read, or that no longer matches its samples.

    It may be a stranger's, and so may be what is said of it.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(plain(what), where=plain(where), expected=plain(expected), fix=plain(fix))


class LaunchError(ScaleproofError):
    """An engine that cannot start a world, or lost the agent that does."""

    exit = Exit.ERROR


class RetryableError(LaunchError):
    """A world or an agent that ended by what may not come again: it is worth a second try."""


class BusyError(ScaleproofError):
    """A host that other work kept so busy that nothing could be measured: nobody's fault."""

    exit = Exit.INCONCLUSIVE


class HostError(ScaleproofError):
    """The environment of this program lacks something: no record and no training is to blame."""


class OutOfTimeError(BusyError):
    """No time was left to measure it: a second try has none either."""


def meant(name: str, known: Iterable[str]) -> str:
    """``did you mean 'ddp'?``, or nothing where no known name is near."""
    by_small_letters = {str(other).lower(): str(other) for other in known}
    near = difflib.get_close_matches(name.lower(), by_small_letters, 1)
    return f"did you mean {by_small_letters[near[0]]!r}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``: did you mean 'ddp'?``, or nothing."""
    hint = meant(name, known)
    return f": {hint}" if hint else ""


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
    expected, fix = _KNOWN.get(error.errno or 0, ("", "scaleproof doctor"))
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
