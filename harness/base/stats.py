"""Confidence intervals for a fixed number of values, slopes and quantiles, as pure functions.

The functions import scipy.special when they first need it. The import takes 0.15 s, and some
commands, such as ``list``, do not need it.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The mean of n values with a two-sided interval.

    ``sd`` is the standard deviation of the values. ``low``, ``high`` and ``sd`` are None if n is 1.
    """

    mean: float
    low: float | None
    high: float | None
    sd: float | None
    n: int


def interval(values: Sequence[float], radius: Callable[[float, int], float | None]) -> Interval:
    """Return the mean with an interval.

    ``radius`` returns half of the interval's width for a standard deviation and n, or None if it is
    unknown. Raises ValueError if there are no values.
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    mean = fmean(values)
    if n == 1:
        return Interval(mean=mean, low=None, high=None, sd=None, n=1)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = radius(deviation, n)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Interval(mean=mean, low=low, high=high, sd=deviation, n=n)


def t_interval(values: Sequence[float], alpha: float) -> Interval:
    """Return Student's t interval of the mean with two-sided error ``alpha``.

    The interval is valid only if it is evaluated once, and not repeatedly while values are added.
    """
    return interval(values, lambda sd, n: t_quantile(1 - alpha / 2, n - 1) * sd / math.sqrt(n))


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: int) -> float:
    """Return the quantile ``p`` of Student's t distribution with ``df`` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def slope(values: Sequence[float], alpha: float = 0.05) -> Interval:
    """Return the least-squares slope of values over their index, with its t interval.

    Raises ValueError if there are fewer than 3 values. ``sd`` of the result is the standard error.
    """
    n = len(values)
    if n < 3:
        raise ValueError("a slope needs at least 3 values")
    xm = (n - 1) / 2
    ym = math.fsum(values) / n
    sxx = math.fsum((i - xm) ** 2 for i in range(n))
    b = math.fsum((i - xm) * (v - ym) for i, v in enumerate(values)) / sxx
    rss = math.fsum((v - ym - b * (i - xm)) ** 2 for i, v in enumerate(values))
    deviation = math.sqrt(rss / (n - 2) / sxx)
    radius = t_quantile(1 - alpha / 2, n - 2) * deviation
    return Interval(mean=b, low=b - radius, high=b + radius, sd=deviation, n=n)


def quantile(values: Sequence[float], q: float) -> float:
    """Return a quantile by linear interpolation.

    This is numpy's default method. It is implemented here so that results do not depend on the
    version of numpy.
    """
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def karp_flatt(speedup: float, num_ranks: float) -> float | None:
    """Return the experimentally determined serial fraction (Karp and Flatt 1990); None at one rank.

    The fraction applies to strong scaling. ``num_ranks`` is the subject's number of ranks divided
    by the baseline's number of ranks.
    """
    if num_ranks <= 1:
        return None
    return (1 / speedup - 1 / num_ranks) / (1 - 1 / num_ranks)


def evenly(costs: Sequence[float], parts: int) -> list[int]:
    """Divide costs into consecutive parts so that the largest sum of a part is minimal.

    Return the number of costs in each part.
    """
    best: dict[tuple[int, int], tuple[float, int]] = {(0, 0): (0.0, 0)}  # (part, end)
    for part in range(1, parts + 1):
        for end in range(part, len(costs) - (parts - part) + 1):
            best[part, end] = min(
                (max(best[part - 1, start][0], sum(costs[start:end])), start)
                for start in range(part - 1, end)
                if (part - 1, start) in best
            )
    counts = []
    end = len(costs)
    for part in range(parts, 0, -1):
        start = best[part, end][1]
        counts.append(end - start)
        end = start
    return counts[::-1]
