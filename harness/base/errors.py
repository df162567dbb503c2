"""Errors for users, and the exit statuses of both programs."""

import difflib
from collections.abc import Iterable
from enum import IntEnum

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
