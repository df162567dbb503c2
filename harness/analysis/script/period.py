"""Find the period of the updates of a user's script."""

from collections.abc import Hashable, Sequence

#: A pattern of updates is a period if it occurs at least ``REPEATS`` times in a row, and if these
#: repetitions are at least the share ``SHARE`` of all observed updates. The first updates may
#: differ.
REPEATS = 3
SHARE = 0.75


def period(words: Sequence[Hashable]) -> int | None:
    """Return the length of the shortest sequence that repeats at the end of ``words``, or None."""
    for length in range(1, len(words) // REPEATS + 1):
        begun = len(words)  # index at which the repetitions begin
        while begun > length and words[begun - 1] == words[begun - 1 - length]:
            begun -= 1
        alike = len(words) - max(0, begun - length)
        if alike >= REPEATS * length and alike >= SHARE * len(words):
            return length
    return None
