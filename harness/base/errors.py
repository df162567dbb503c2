"""Errors for users, and the exit statuses of both programs."""

import difflib
from collections.abc import Iterable
from enum import IntEnum

from harness.base.formatting import plain


class Exit(IntEnum):
    """The exit status of both programs. It is 0 only if something was judged and all of it
    passed.
    """

    PASSED = 0
    FAILED = 1
    INTERRUPTED = 2
    INTERNAL = 3
    USAGE = 4
    NOTHING_JUDGED = 5
    INCONCLUSIVE = 10
    ERROR = 11


class ScaleproofError(Exception):
    """An error with one clear message for a user. ``fix`` is the command to run next."""

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
    """A case, plan or option cannot be run as requested."""


class ConfigError(ScaleproofError):
    """A TOML file has mistakes. The message lists all of them."""


class RecordError(ScaleproofError):
    """A record cannot be read, or no longer matches its samples.

    The record may come from a stranger, so control characters are removed from the message.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(plain(what), where=plain(where), expected=plain(expected), fix=plain(fix))


class LaunchError(ScaleproofError):
    """An engine cannot start a world, or lost the agent that starts it."""

    exit = Exit.ERROR


class RetryableError(LaunchError):
    """A world or an agent ended for a reason that may not recur, so a second try is useful."""


class BusyError(ScaleproofError):
    """Other processes kept the host so busy that nothing could be measured."""

    exit = Exit.INCONCLUSIVE


class HostError(ScaleproofError):
    """The environment of this program lacks something. The record and the training are not the
    cause.
    """


class OutOfTimeError(BusyError):
    """No time was left for a measurement. A second try would not have time either."""


def meant(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'ddp'?``, or an empty string if no known name is similar."""
    by_small_letters = {str(other).lower(): str(other) for other in known}
    near = difflib.get_close_matches(name.lower(), by_small_letters, 1)
    return f"did you mean {by_small_letters[near[0]]!r}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a sentence, ``: did you mean 'ddp'?``, or an empty
    string.
    """
    hint = meant(name, known)
    return f": {hint}" if hint else ""
