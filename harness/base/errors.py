"""Errors for users, and the exit statuses of the command ``scaleproof`` and the pytest plugin."""

import difflib
from collections.abc import Iterable
from enum import IntEnum

from harness.base.formatting import plain


class Exit(IntEnum):
    """The exit status of the command ``scaleproof`` and of the pytest plugin.

    It is 0 only if all judged thresholds pass. If thresholds were asked for, by suites or
    ``--require-verdict``, at least one must have judged a result.
    """

    PASSED = 0
    FAILED = 1
    INTERRUPTED = 2
    INTERNAL = 3
    USAGE = 4
    NOTHING_JUDGED = 5
    INCONCLUSIVE = 10
    ERROR = 11
    NOT_COMPARABLE = 12


class ScaleproofError(Exception):
    """An error with a message for a user.

    ``what`` says what happened, ``where`` names the object, ``expected`` says what was expected,
    and ``fix`` is the command to run next.
    """

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


class ChangedError(RecordError):
    """A record was changed after it was written. Every command then says NOT VERIFIED."""

    exit = Exit.FAILED

    def __init__(self, what: str, *, where: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(f"NOT VERIFIED: {what}", where=where, expected=expected, fix=fix)


class NotComparableError(ScaleproofError):
    """The training cannot be compared with a reference, although it may be correct.

    The message names the property of the model that no check supports, and what to change.
    """

    exit = Exit.NOT_COMPARABLE


class LaunchError(ScaleproofError):
    """An engine cannot start a world, or lost the agent that starts it."""

    exit = Exit.ERROR


class RetryableError(LaunchError):
    """A world or an agent ended for a reason that may not recur, so a second try is useful."""


class BusyError(ScaleproofError):
    """Other processes kept the host so busy that nothing could be measured."""

    exit = Exit.INCONCLUSIVE


class HostError(ScaleproofError):
    """The environment of this program lacks something that the program needs.

    Neither the record nor the training is the cause.
    """


class OutOfTimeError(BusyError):
    """No time was left for a measurement. A second try would not have time either."""


def meant(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'ddp'?``, or "" if no known name is similar."""
    by_small_letters = {str(other).lower(): str(other) for other in known}
    near = difflib.get_close_matches(name.lower(), by_small_letters, 1)
    return f"did you mean {by_small_letters[near[0]]!r}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint to append to a sentence, such as ``: did you mean 'ddp'?``, or ""."""
    hint = meant(name, known)
    return f": {hint}" if hint else ""
