"""The rank scan: whether the level of a series of nights has changed, when, and by how much.

Values become normal scores of their ranks, so one wild night weighs no more than any other. Every
split with three nights on either side is scored; the best score is held against what nights in
random order give (``null``). Then both sides are searched again.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist, median

import numpy as np

#: Nights on each side of a change; below ``ENOUGH`` in all, nothing can be told.
FEWEST, ENOUGH = 3, 12
#: False alarms of one series whose nights are independent: one in a thousand in each direction.
ALPHA = 0.002
#: Normal scores are cut off here. Uncut ones find 65 % of 3 % steps among wild nights, these 74 %.
CUT = 1.7
#: Two-sided error of the interval of a size.
SIZE_ALPHA = 0.05
NULL = Path(__file__).parent / "null.json"


@dataclass(frozen=True, kw_only=True)
class Size:
    """By how much a level moved: the median of all differences between nights after and before
    (Hodges & Lehmann 1963), with the interval that belongs to the rank-sum test.
    """

    by: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """A new level from night ``at`` (an index) to the next change, against the level before.

    ``p`` is the share of series without any change that score as high.
    """

    at: int
    p: float
    size: Size


def changes(values: Sequence[float], floor: float, alpha: float = ALPHA) -> list[Change]:
    """Every change of level, oldest first.

    Args:
        values: one a night, in their order; logarithms, where sizes are to be ratios.
        floor: smaller ones than this are no changes.
    """
    x = np.asarray(values, dtype=float)
    cuts = _cuts(x, 0, len(x), alpha)
    while True:
        steps = [_change(x, *ends) for ends in _around(cuts, len(x))]
        weak = [i for i, c in enumerate(steps) if c.p > alpha or abs(c.size.by) < floor]
        if not weak:
            return steps
        least = max(weak, key=lambda i: (steps[i].p, -abs(steps[i].size.by)))
        cuts = [steps[i].at for i in range(len(steps)) if i != least]


def _around(cuts: Sequence[int], n: int) -> list[tuple[int, int]]:
    """The nights of both levels beside each cut."""
    ends = [0, *cuts, n]
    return [(ends[i], ends[i + 2]) for i in range(len(cuts))]


def _change(x: np.ndarray, start: int, end: int) -> Change:
    """The best cut between two neighbours."""
    at, score = best(x[start:end])
    cut = start + located(x[start:end], at)
    size = shift(x[start:cut], x[cut:end])
    return Change(at=cut, p=p_value(score, end - start), size=size)


def _cuts(x: np.ndarray, start: int, end: int, alpha: float) -> list[int]:
    """Splits of the nights from ``start`` to ``end``, and of both sides of each.

    A level that came and went hides from one split of all nights, so both two thirds are searched,
    too, at a sixteenth of ``alpha`` each.
    """
    third = (end - start) // 3
    whole = (start, end, alpha)
    parts = ((start, end - third), (start + third, end))
    for a, b, limit in (whole, *((*part, alpha / 16) for part in parts)):
        if b - a < 2 * FEWEST:
            continue
        at, score = best(x[a:b])
        if p_value(score, b - a) <= limit:
            cut = a + at
            return [*_cuts(x, start, cut, alpha), cut, *_cuts(x, cut, end, alpha)]
    return []


def best(x: np.ndarray) -> tuple[int, float]:
    """The split that scores highest, and its score: how many standard deviations the sum of the
    first nights' normal scores is from its mean over all orders. Infinite where nights differ only
    across the split, and there was no noise at all before.
    """
    n = len(x)
    values, rank = np.unique(x, return_inverse=True)
    if len(values) == 1:
        return FEWEST, 0.0
    counts = np.bincount(rank)
    sums = np.add.reduceat(normal_scores(n), np.cumsum(counts) - counts)
    scores = (sums / counts)[rank]  # equal nights share theirs
    k = np.arange(FEWEST, n - FEWEST + 1)
    sd = np.sqrt((scores @ scores) / (n - 1) * k * (n - k) / n)
    z = np.abs(np.cumsum(scores)[k - 1]) / sd
    i = int(np.argmax(z))
    exact = len(values) == 2 and len(set(x[: k[i]])) == len(set(x[k[i] :])) == 1
    return int(k[i]), math.inf if exact and n >= ENOUGH else float(z[i])


def located(x: np.ndarray, at: int) -> int:
    """The first night of the new level: where both levels fit best, wild nights counting less
    (Huber 1964). Ranks alone are off by a night where one side is much longer.
    """
    for _ in range(2):
        levels = np.array([np.median(x[:at]), np.median(x[at:])])
        apart = np.concatenate([x[:at] - levels[0], x[at:] - levels[1]])
        sd = 1.4826 * float(np.median(np.abs(apart))) or 1e-12
        off = np.abs(x - levels[:, None]) / sd
        cost = np.where(off < 1.5, off**2 / 2, 1.5 * off - 1.125)
        both = np.cumsum(cost[0]) + cost[1].sum() - np.cumsum(cost[1])
        at = FEWEST + int(np.argmin(both[FEWEST - 1 : len(x) - FEWEST]))
    return at


@cache
def normal_scores(n: int) -> np.ndarray:
    normal = NormalDist()
    scores = [normal.inv_cdf((i + 0.5) / n) for i in range(n)]
    return np.asarray(np.clip(scores, -CUT, CUT))


def shift(before: np.ndarray, after: np.ndarray) -> Size:
    """The size of a change; its interval counts differences as the rank-sum test would."""
    differences = np.sort(np.subtract.outer(after, before), axis=None)
    m, n = len(before), len(after)
    spread = NormalDist().inv_cdf(1 - SIZE_ALPHA / 2) * math.sqrt(m * n * (m + n + 1) / 12)
    first = max(0, math.floor(m * n / 2 - spread))
    return Size(
        by=float(np.median(differences)),
        low=float(differences[first]),
        high=float(differences[-1 - first]),
    )


@cache
def _null() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(nights, probabilities, scores[nights, probabilities]) of ``null.json``."""
    table = json.loads(NULL.read_text())
    scores = {int(n): row for n, row in table["scores"].items()}
    return np.array(list(scores)), np.array(table["p"]), np.array(list(scores.values()))


def p_value(score: float, n: int) -> float:
    """How often ``n`` nights in random order score as high. Beyond the table the tail goes on as a
    normal one's does: its logarithm falls with the square of the score.
    """
    if math.isinf(score):
        return 0.0
    nights, p, scores = _null()
    row = np.array([np.interp(math.log(n), np.log(nights), column) for column in scores.T])
    if score < row[0]:
        return 1.0
    above = int(np.searchsorted(row, score, side="left"))
    if above == len(row):
        last, before = row[-1] ** 2, row[-4] ** 2
        if last - before < 1e-9:  # so few nights that nothing scores higher
            return float(p[-1])
        slope = math.log(p[-1] / p[-4]) / (last - before)
        return float(p[-1] * math.exp(slope * (score**2 - last)))
    if above == 0:
        return float(p[0])
    low, high = row[above - 1], row[above]
    share = 1.0 if high <= low else (score - low) / (high - low)
    return float(math.exp((1 - share) * math.log(p[above - 1]) + share * math.log(p[above])))


def leap(values: Sequence[float], jump: float, sds: float = 6.0) -> bool:
    """Whether the newest night is far from those before: beyond ``jump`` and so many robust
    standard deviations. One night is no change of level: it asks for another run.
    """
    *before, last = values[-ENOUGH - 1 :]
    if len(before) < FEWEST:
        return False
    middle = median(before)
    sd = 1.4826 * median(abs(v - middle) for v in before)
    return abs(last - middle) > max(jump, sds * sd)
