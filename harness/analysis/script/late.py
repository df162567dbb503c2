"""Find the rank of one launch of a user's script that the other ranks wait for."""

from collections.abc import Sequence

import numpy as np

#: A rank is late if it takes longer than the other ranks by the share ``LATE`` of a step, and by
#: ``LATE_S`` seconds or more.
LATE = 0.25
LATE_S = 2e-3


def late(
    ahead_s: Sequence[float], queued_s: Sequence[float], step_s: float, busy: float = 0.0
) -> tuple[int, float] | None:
    """Return the rank for which the others wait, and its delay in s per step, or None.

    Ranks exchange data within the backward pass, so a delay of one rank before that pass delays all
    ranks.

    Args:
        ahead_s: each rank's time in a step up to its backward pass, in s.
        queued_s: each rank's time in a step in which its threads wait for a core, in s. It is
            subtracted, because it is caused by the machine and not by the script.
        step_s: the time of a step in s.
        busy: the share of the cores that other processes used. The limit is increased by half of
            this share of a step, because other processes also occupy caches.
    """
    if len(ahead_s) < 2 or not all(ahead_s):
        return None
    own_s = np.maximum(np.subtract(ahead_s, queued_s), 0.0)
    slowest = int(own_s.argmax())
    more_s = float(own_s[slowest] - np.median(np.delete(own_s, slowest)))
    return (slowest, more_s) if more_s >= max(LATE_S, (LATE + busy / 2) * step_s) else None
