"""The smallest repeating period of what a training does between two updates of its weights."""

from collections.abc import Hashable, Sequence

#: A period must be seen so often, over so much of what was seen; what comes first may differ.
REPEATS = 3
SHARE = 0.75


def period(words: Sequence[Hashable]) -> int | None:
    """The smallest p of which ``words`` end in repetitions; None where there is none."""
    for length in range(1, len(words) // REPEATS + 1):
        begun = len(words)  # the repetitions begin here
        while begun > length and words[begun - 1] == words[begun - 1 - length]:
            begun -= 1
        alike = len(words) - max(0, begun - length)
        if alike >= REPEATS * length and alike >= SHARE * len(words):
            return length
    return None
