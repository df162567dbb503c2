"""The standard of evidence: what a PASS and a FAIL ask for beyond the interval.

An interval knows of what was seen. Launches that are slow now and then may not have been seen, and
a trend may go on after the last look: both are allowed for here. How often the judge is wrong by
this standard, under the declared noise classes and the noise of real clusters, is simulated by
``tests/acceptance/rates.py``.
"""

import math
from collections.abc import Sequence

from harness.base import stats

#: Error of an interval, half of it at either end: 95 % for each one-sided statement.
ALPHA = 0.1
#: Pairs at the first look: with fewer, nothing is decided.
FIRST_LOOK = 4
#: Declared slow launches: at most this share of them, slower by at most this much.
UNSEEN_SHARE = 0.2
UNSEEN_SLOWDOWN = 0.05
#: Declared halves, as of two racks: half of the launches are slower by this much.
HALF_SLOWER = 0.1
#: From so many pairs on, a FAIL needs no allowance: a fresh set has to confirm it anyhow.
BARE_FAIL = 8
#: One-sided error at which pairs that fall by chance are taken for a trend.
TREND_ALPHA = 0.25


def unseen_share(n: int) -> float:
    """Slow launches that n pairs did not show are at most this share of all.

    With a larger share p, n pairs show none with a probability (1 - p)^n below 5 %.
    """
    return float(1 - (ALPHA / 2) ** (1 / n))


def allowance(n: int) -> float:
    """By how much the mean can lie below the mean of n pairs that did not show a slow launch.

    Relative; for the declared slow launches.
    """
    return UNSEEN_SLOWDOWN * min(UNSEEN_SHARE, unseen_share(n))


def kept(n: int) -> float:
    """The margin by which n pairs must clear a bound: the allowance, and while they may all be of
    the faster half by chance (0.5^n above 5 %: 4 pairs), what the slower half takes of the mean.
    """
    hidden = 0.5**n > ALPHA / 2
    return max(allowance(n), HALF_SLOWER / 2 if hidden else 0.0)


def trend_loss(values: Sequence[float], horizon: int) -> float:
    """By how much the mean of ``horizon`` values lies below that of the first n if they go on
    falling as they do; 0 where they do not fall, or fall no more than by chance.
    """
    n = len(values)
    if horizon <= n or n < 3:
        return 0.0
    line = stats.slope(values, 2 * TREND_ALPHA)
    assert line.high is not None
    return -line.mean * (horizon - n) / 2 if line.high < 0 and math.isfinite(line.mean) else 0.0
