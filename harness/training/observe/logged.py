"""Values that a training logs for metrics of its own: ``log_metric("dropped_tokens", 12)``.

A rank records the mean of the values that it logs in its timed window. Thresholds name the metric
``logged.dropped_tokens``.
"""

import math
import re
import time
from collections import deque
from statistics import fmean

from harness.base.errors import SpecError

#: Most values of a metric that are kept, and most metrics of one training.
KEPT = 100_000
MOST = 64
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_values: dict[str, deque[tuple[int, float]]] = {}


def log_metric(name: str, value: float) -> None:
    """Log a value of a metric that this training defines. A call takes about a microsecond.

    ``value`` is any finite number; a tensor has to be read first (``.item()``), which makes a GPU
    wait. Raise SpecError for a name that is no identifier, and for the 65th name.
    """
    known = _values.get(name)
    if known is None:
        if not _NAME.fullmatch(name) or len(_values) == MOST:
            raise SpecError(
                f"log_metric: {name!r} cannot be a metric",
                expected=f"at most {MOST} names of letters, digits and _",
                fix='log_metric("dropped_tokens", 12)',
            )
        known = _values[name] = deque(maxlen=KEPT)
    known.append((time.time_ns(), float(value)))


def means(window_ns: tuple[int, int]) -> dict[str, float | None]:
    """Return the mean of the values of each metric that were logged in the window.

    ``window_ns`` is in ns since the epoch. A metric without a value in it is left out. A metric
    with a value that is not finite has no mean (None), because the others would hide that value.
    """
    begin, end = window_ns
    kept = {
        name: [value for at, value in list(values) if begin <= at <= end]
        for name, values in sorted(_values.items())
    }
    return {
        name: fmean(values) if all(map(math.isfinite, values)) else None
        for name, values in kept.items()
        if values
    }
