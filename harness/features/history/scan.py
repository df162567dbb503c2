"""The rank scan: finds if, when and by how much the level of a series of nightly runs changed.

``python -m harness.features.history.scan`` computes the table ``null.json`` again.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import NormalDist, median

import numpy as np
from scipy.stats import theilslopes

#: Numbers of nights for which the null distribution of the score is tabulated.
NIGHTS = (
    6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 25, 30, 36, 45, 60, 80, 110, 150, 220,
    365, 730,
)  # fmt: skip
#: Probabilities whose quantiles are tabulated.
P = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 5e-4, 2e-4, 1e-4, 5e-5)
#: Random numbers drawn for each number of nights; this is 600,000 series of 60 nights.
NUMBERS = 36_000_000
#: For temporary levels: the probability that chance scores as high, and the number of series drawn.
BRIEF_P = 0.001
BRIEF_SERIES = 20_000


def highest(n: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return the best scores of ``count`` series of ``n`` nights in random order."""
    scores = np.tile(normal_scores(n), (count, 1))
    random.permuted(scores, axis=1, out=scores)
    k = np.arange(FEWEST_NIGHTS, n - FEWEST_NIGHTS + 1)
    deviation = np.sqrt((normal_scores(n) ** 2).sum() / (n - 1) * k * (n - k) / n)
    best: np.ndarray = np.max(np.abs(np.cumsum(scores, axis=1)[:, k - 1]) / deviation, axis=1)
    return best


def highest_brief(n: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return the best scores of temporary levels of ``count`` series in random order."""
    scores = np.tile(normal_scores(n), (count, 1))
    random.permuted(scores, axis=1, out=scores)
    sums = np.cumsum(scores, axis=1)
    square = (normal_scores(n) ** 2).sum() / (n - 1)
    best = np.zeros(count)
    for m in range(FEWEST_NIGHTS, min(LONGEST, n // BRIEF) + 1):
        inside = np.abs(
            sums[:, FEWEST_NIGHTS - 1 + m : n - FEWEST_NIGHTS]
            - sums[:, FEWEST_NIGHTS - 1 : n - FEWEST_NIGHTS - m]
        )
        best = np.maximum(best, inside.max(axis=1) / np.sqrt(square * m * (n - m) / n))
    return best


def main() -> None:
    """Write ``null.json``: quantiles of the scores of series in random order."""
    random = np.random.default_rng(20)
    rows = {}
    for n in NIGHTS:
        remaining = min(NUMBERS // n, 1_000_000)
        drawn = []
        while remaining > 0:
            count = min(remaining, 2_000_000 // n)
            drawn.append(highest(n, count, random))
            remaining -= count
        rows[n] = [round(float(q), 4) for q in np.quantile(np.concatenate(drawn), 1 - np.array(P))]
    lines = ",\n  ".join(f'"{n}": {json.dumps(row)}' for n, row in rows.items())
    briefs = {n: highest_brief(n, BRIEF_SERIES, random) for n in NIGHTS if n >= ENOUGH}
    brief = {n: round(float(np.quantile(s, 1 - BRIEF_P)), 3) for n, s in briefs.items()}
    NULL.write_text(
        f'{{\n "p": {json.dumps(P)},\n "scores": {{\n  {lines}\n }},\n'
        f' "brief": {json.dumps(brief)}\n}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()


#: Largest number of nights that are compared on each side of a step.
AROUND = 45
#: The position of a step is known to within this many nights.
NEAR = 2
#: Prior probabilities of the kinds of noise: independent, weekly pattern, autoregressive, random
#: walk, linear drift.
USUAL = (0.35, 0.1, 0.2, 0.2, 0.15)
#: Variances of a weekly pattern, of each step of a random walk, and of a linear drift, relative to
#: the variance of the independent noise.
OF_WEEKDAYS = (0.5, 2.0, 8.0)
OF_WALKS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
OF_LINES = (1.0, 4.0, 16.0)
#: Parameters of autoregressive noise: the correlation of successive nights, and the share of the
#: total variance that this noise accounts for.
CORRELATIONS = (0.3, 0.5, 0.7, 0.85, 0.95)
SHARES = (0.5, 1.0)
#: Limits for outliers, in robust standard deviations from the median of the neighbouring nights. A
#: night beyond the first limit is clipped, and one beyond the second is replaced by the median.
#: NEIGHBOURS is the number of neighbours on each side.
WANDERING_CUT = 2.5
WILD = 5.0
NEIGHBOURS = 4


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Matrices that make nights independent, for each kind and strength of dependence.

    ``matrices`` has the shape (kinds, nights, nights). ``log_weights`` holds for each kind the
    logarithm of its prior probability, minus the logarithm of the determinant in its likelihood.
    """

    matrices: np.ndarray  # (kinds, nights, nights)
    log_weights: np.ndarray


def nats(
    values: Sequence[float] | np.ndarray,
    at: int,
    others: Sequence[int] = (),
    nodes: Sequence[str] = (),
) -> float:
    """Return the log-likelihood margin (nats) of a step near ``at`` over no step.

    The step may be up to ``NEAR`` nights away from ``at``.

    Args:
        values: one value for each night, in order.
        at: the first night of the new level.
        others: the first nights of other levels, which are fitted with and without the step.
        nodes: the node of each night. Differences between nodes are fitted with and without the
            step.
    """
    start = max(0, at - AROUND)
    end = min(len(values), at + AROUND)
    x = _tamed(np.asarray(values[start:end], dtype=float))
    night = np.arange(start, end)
    known = [np.ones(len(x)), *(night >= other for other in others if start < other < end)]
    names = sorted(set(nodes[start:end]))
    known += [np.array([name == node for node in nodes[start:end]]) for name in names[1:]]
    near = [k for k in range(at - NEAR, at + NEAR + 1) if start + 2 < k < end - 2]
    steps = np.column_stack([night >= k for k in near]).astype(float)
    regressors = np.column_stack(known).astype(float)
    without, with_step = _likelihoods(x, regressors, steps, _whitening(len(x)))
    return float(np.logaddexp.reduce(with_step) - np.logaddexp.reduce(without))


def _likelihoods(
    x: np.ndarray, regressors: np.ndarray, steps: np.ndarray, white: Whitening
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the restricted likelihoods without a step and with the best step.

    Both arrays have one entry for each kind of dependence between nights.
    """
    basis, triangle = np.linalg.qr(white.matrices @ regressors)
    scale = np.abs(np.diagonal(triangle, axis1=1, axis2=2))
    told_apart = scale > 1e-9
    basis = basis * told_apart[:, None, :]
    free = len(x) - told_apart.sum(axis=1)
    turned = white.matrices @ np.column_stack([x, steps])
    turned = turned - basis @ (basis.transpose(0, 2, 1) @ turned)
    left, of_step = turned[:, :, :1], turned[:, :, 1:]
    square = (left**2).sum(axis=(1, 2)) + 1e-30
    size = (of_step**2).sum(axis=1)
    along = (left * of_step).sum(axis=1) ** 2
    explained = np.where(size > 1e-9, along / np.maximum(size, 1e-9), 0.0).max(axis=1)
    least = np.maximum(square - explained, 1e-12 * square)
    constant = white.log_weights - np.log(np.where(told_apart, scale, 1.0)).sum(axis=1)
    return constant - free / 2 * np.log(square), constant - free / 2 * np.log(least)


def _tamed(x: np.ndarray) -> np.ndarray:
    """Return the values with outliers clipped or replaced. Steps and random walks are preserved."""
    usual = np.array(
        [np.median(x[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1]) for i in range(len(x))]
    )
    deviation = 1.4826 * float(np.median(np.abs(x - usual))) or 1e-12
    off = (x - usual) / deviation
    return usual + deviation * np.where(
        np.abs(off) > WILD, 0.0, np.clip(off, -WANDERING_CUT, WANDERING_CUT)
    )


@lru_cache(maxsize=16)
def _whitening(n: int) -> Whitening:
    """Return the matrices that make ``n`` nights independent, for all kinds of dependence."""
    night = np.arange(n)
    apart = np.abs(night[:, None] - night)
    alone = np.eye(n)
    line = (night - night.mean()) / night.std()
    groups: tuple[list[np.ndarray], ...] = (
        [alone],
        [alone + share * (apart % 7 == 0) for share in OF_WEEKDAYS],
        [(1 - share) * alone + share * r**apart for r in CORRELATIONS for share in SHARES],
        [alone + share * (np.minimum(night[:, None], night) + 1) for share in OF_WALKS],
        [alone + share * np.outer(line, line) for share in OF_LINES],
    )
    weights = [w / len(g) for w, g in zip(USUAL, groups, strict=True) for _ in g]
    roots = np.linalg.cholesky(np.stack([way for group in groups for way in group]))
    determinants = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    return Whitening(matrices=np.linalg.inv(roots), log_weights=np.log(weights) - determinants)


#: Smallest number of nights on each side of a change, and smallest number of nights in a series.
#: Shorter series are not judged.
FEWEST_NIGHTS = 3
ENOUGH = 12
#: Probability of a false alarm in one series of independent nights. It is 0.001 in each direction.
ALPHA = 0.002
#: Limit at which normal scores are clipped. Among nights with outliers, clipped scores find 74 % of
#: the steps of 3 %, and unclipped ones 65 %.
CUT = 1.7
#: Two-sided error probability of the interval of a size.
SIZE_ALPHA = 0.05
#: Nights count as dependent if the sum of their first LAGS autocorrelations exceeds DEPENDENT. The
#: sum of 60 independent nights exceeds it in one of twenty series.
LAGS = 3
DEPENDENT = 0.35
#: Log-likelihood margin (nats) of a change over dependent nights without it. A change is recorded
#: from a margin of SEEN and reported from CERTAIN. A change smaller than ``SMALL`` times the floor
#: needs CERTAIN_SMALL, because random walks produce small changes most often.
SEEN = 4.0
CERTAIN = 7.5
CERTAIN_SMALL = 12.0
SMALL = 2.0
#: Log-likelihood margin (nats) by which steps must beat a straight line before a night is blamed.
SUDDEN_NATS = 2.0
#: A slope counts as a drift if it differs from zero by at least this many standard deviations.
DRIFTS = 4.0
#: A temporary level lasts for at most 1/BRIEF of all nights, and for at most LONGEST nights.
BRIEF = 3
LONGEST = 40
NULL = Path(__file__).parent / "null.json"


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a change of level, with an interval.

    The size is the median of all differences between a night after the change and a night before it
    (Hodges & Lehmann 1963). The interval is that of the rank-sum test.
    """

    by: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of level at night ``at``, which is the index of the first night of the new level.

    ``size`` is relative to the level before. ``p`` is the probability that independent nights
    without a change have as high a score. ``nats`` is the log-likelihood margin over dependent
    nights without this change. ``certain`` is set if that margin suffices to report the change.
    """

    at: int
    p: float
    size: Size
    nats: float = math.inf
    certain: bool = True


def changes(
    values: Sequence[float] | np.ndarray,
    floor: float,
    alpha: float = ALPHA,
    nodes: Sequence[str] = (),
) -> list[Change]:
    """Return every change of level, oldest first.

    The list is empty if a drift, or a dependence between nights, explains the values equally well.

    Args:
        values: one value for each night, in order; logarithms if sizes are to be ratios.
        floor: the smallest difference that counts as a change.
        alpha: the probability of a false alarm.
        nodes: the node of each night. A difference between nodes is not a change.
    """
    x = without_nodes(np.asarray(values, dtype=float), nodes)
    steps = _steps(x, _cuts(x, 0, len(x), alpha), floor, alpha)
    seen = list[Change]()
    while steps:
        weighed = _weighed(np.asarray(values, dtype=float), steps, _names(nodes, len(x)), floor)
        if all(change.certain for change in weighed) and not _like_a_line(x, weighed):
            return weighed
        least = min(weighed, key=lambda change: (change.certain, change.nats))
        if least.nats >= SEEN and not seen:
            seen = weighed
        steps = _steps(x, [step.at for step in steps if step.at != least.at], floor, alpha)
    return seen


def _weighed(
    x: np.ndarray, steps: Sequence[Change], nodes: Sequence[str], floor: float
) -> list[Change]:
    """Return the steps, each with its log-likelihood margin over dependent nights.

    The margin of a step compares all steps with all steps except this one.
    """
    changed = []
    for step in steps:
        others = [change.at for change in steps if change.at != step.at]
        by = math.inf if step.p == 0.0 else nats(x, step.at, others, nodes)
        needed = CERTAIN_SMALL if abs(step.size.by) < SMALL * floor else CERTAIN
        changed.append(replace(step, nats=by, certain=by >= needed))
    return changed


def _steps(x: np.ndarray, cuts: list[int], floor: float, alpha: float) -> list[Change]:
    """Return the changes at these splits, except changes that are too small or may be chance.

    They are removed one by one, the weakest first, because the levels next to a removed change
    become longer.
    """
    while True:
        steps = [_change(x, *ends) for ends in _around(cuts, len(x))]
        weak = [i for i, step in enumerate(steps) if step.p > alpha or abs(step.size.by) < floor]
        # Two splits may move to nearly the same night, but a level needs at least FEWEST_NIGHTS
        # nights.
        for i, (a, b) in enumerate(itertools.pairwise(steps)):
            if b.at - a.at < FEWEST_NIGHTS:
                weak.append(i if a.p > b.p else i + 1)
        if not weak:
            return steps
        least = max(weak, key=lambda i: (steps[i].p, -abs(steps[i].size.by)))
        cuts = [steps[i].at for i in range(len(steps)) if i != least]


def without_nodes(x: np.ndarray, nodes: Sequence[str]) -> np.ndarray:
    """Return the values as if one node had measured all nights.

    The differences between nodes are fitted together with the one step that explains most of the
    values. If the node changed permanently at a step, the step is attributed to the node.
    """
    nodes = _names(nodes, len(x))
    names = sorted(set(nodes))
    if not names:
        return x
    of_node = np.array([[name == other for other in names] for name in nodes], float)
    effects = np.zeros(len(names))
    fewest = math.inf
    for at in range(FEWEST_NIGHTS, len(x) - FEWEST_NIGHTS + 1):
        step = (np.arange(len(x)) >= at).astype(float)
        fit = np.linalg.lstsq(np.column_stack([of_node, step]), x, rcond=None)[0]
        left = float(np.abs(x - of_node @ fit[:-1] - fit[-1] * step).sum())
        if left < fewest:
            fewest = left
            effects = fit[:-1]
    return x - of_node @ (effects - np.median(of_node @ effects))


def _names(nodes: Sequence[str], num_nights: int) -> Sequence[str]:
    """Return the nodes if their differences can be fitted: several nodes, each with
    enough nights.
    """
    several = 1 < len(set(nodes)) <= num_nights // FEWEST_NIGHTS
    return nodes if several and len(nodes) == num_nights else ()


def dependence(values: Sequence[float] | np.ndarray, nodes: Sequence[str] = ()) -> float:
    """Return the correlation of successive nights around the best split.

    Return 0 if the nights may be independent.
    """
    x = without_nodes(np.asarray(values, dtype=float), nodes)
    if len(x) < ENOUGH:
        return 0.0
    return _correlation(x, [located(x, best(x)[0])])


def drift(
    values: Sequence[float] | np.ndarray, floor: float, nodes: Sequence[str] = ()
) -> float | None:
    """Return the total gradual change over all nights.

    Return None if there is no such change, or if it clearly came in steps.
    """
    if len(values) < ENOUGH:
        return None
    x = without_nodes(np.asarray(values, dtype=float), nodes)
    scores = tied_scores(x)
    night = np.arange(len(x))
    if not scores.any():
        return None
    r = float(np.corrcoef(night, scores)[0, 1])
    residuals = scores - np.polyval(np.polyfit(night, scores, 1), night)
    together = max(0.0, float(residuals[1:] @ residuals[:-1] / max(residuals @ residuals, 1e-12)))
    t = r * math.sqrt((len(x) - 2) / max(1e-12, 1 - r**2) * (1 - together) / (1 + together))
    if abs(t) < DRIFTS or any(
        change.certain for change in changes(values, floor, nodes=nodes)[-1:]
    ):
        return None
    by = float(theilslopes(x, night)[0]) * (len(x) - 1)
    return by if abs(by) >= floor else None


def sudden(values: Sequence[float] | np.ndarray, cuts: Sequence[int]) -> bool:
    """Return whether levels are clearly more likely than a straight line.

    If they are, the change happened in one night, which can be reported as its date.
    """
    return _nats_over_line(np.asarray(values, dtype=float), cuts) >= SUDDEN_NATS


def _like_a_line(x: np.ndarray, steps: Sequence[Change]) -> bool:
    """Return whether a straight line explains the values as well as several steps do.

    The steps must all have the same direction. Each further step is penalised by log(number of
    nights), as in the Bayesian information criterion.
    """
    if len(steps) == 1 or len({step.size.by > 0 for step in steps}) > 1:
        return False
    return _nats_over_line(x, [step.at for step in steps]) <= (len(steps) - 1) * math.log(len(x))


def _nats_over_line(x: np.ndarray, cuts: Sequence[int]) -> float:
    """Return the log-likelihood margin (nats) of levels over a straight line.

    It is computed from the normal scores of the nights.
    """
    scores = tied_scores(x)
    night = np.arange(len(x))
    line = scores - np.polyval(np.polyfit(night, scores, 1), night)
    levels = _within(scores, cuts)
    if not levels @ levels:
        return math.inf
    return len(x) / 2 * math.log(max(float(line @ line), 1e-12) / float(levels @ levels))


def _within(scores: np.ndarray, cuts: Sequence[int]) -> np.ndarray:
    """Return the scores, each minus the mean of its level."""
    return np.concatenate([part - part.mean() for part in np.split(scores, cuts) if len(part)])


def _correlation(x: np.ndarray, cuts: Sequence[int]) -> float:
    """Return the autocorrelation of successive nights around their levels.

    Return 0 if the nights may be independent.
    """
    scores_left = _within(tied_scores(x), cuts)
    square = float(scores_left @ scores_left)
    if not square:
        return 0.0
    lags = [float(scores_left[k:] @ scores_left[:-k]) / square for k in range(1, LAGS + 1)]
    # Subtracting means biases autocorrelations downwards, so correct for that.
    bias = (1 + len(cuts)) / len(x)
    if sum(lags) + LAGS * bias <= DEPENDENT:
        return 0.0
    return min(0.9, max(0.0, lags[0] + bias))


def _around(cuts: Sequence[int], n: int) -> list[tuple[int, int]]:
    """Return for each split the begin of the level before it and the end of the level after it."""
    ends = [0, *cuts, n]
    return [(ends[i], ends[i + 2]) for i in range(len(cuts))]


def _change(x: np.ndarray, start: int, end: int) -> Change:
    """Return the best change within the nights from ``start`` to ``end``."""
    at, score = best(x[start:end])
    cut = start + located(x[start:end], at)
    size = shift(x[start:cut], x[cut:end])
    return Change(at=cut, p=p_value(score, end - start), size=size)


def _cuts(x: np.ndarray, start: int, end: int, alpha: float) -> list[int]:
    """Return splits of the nights from ``start`` to ``end``, found recursively on both sides.

    A single split of all nights may miss a temporary level. The first two thirds and the last two
    thirds of the nights are therefore searched too, each at a sixteenth of ``alpha``.
    """
    third = (end - start) // 3
    whole = (start, end, alpha)
    parts = ((start, end - third), (start + third, end))
    for a, b, limit in (whole, *((*part, alpha / 16) for part in parts)):
        if b - a < 2 * FEWEST_NIGHTS:
            continue
        at, score = best(x[a:b])
        if p_value(score, b - a) <= limit:
            cut = a + at
            return [*_cuts(x, start, cut, alpha), cut, *_cuts(x, cut, end, alpha)]
    if end - start >= ENOUGH:
        first, last, score = brief(x[start:end])
        if score > _brief_null(end - start):
            return [start + first, start + last]
    return []


def brief(x: np.ndarray) -> tuple[int, int, float]:
    """Return the temporary level with the highest score.

    The result is its first night, the first night after it, and the score, as in ``best``.
    """
    n = len(x)
    scores = tied_scores(x)
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    square = float(scores @ scores)
    highest = (0, 0, 0.0)
    if not square:
        return highest
    for m in range(FEWEST_NIGHTS, min(LONGEST, n // BRIEF) + 1):
        first = np.arange(FEWEST_NIGHTS, n - FEWEST_NIGHTS - m + 1)
        inside = np.abs(sums[first + m] - sums[first])
        i = int(np.argmax(inside))
        score = float(inside[i]) / math.sqrt(square / (n - 1) * m * (n - m) / n)
        if score > highest[2]:
            highest = (int(first[i]), int(first[i]) + m, score)
    return highest


def best(x: np.ndarray) -> tuple[int, float]:
    """Return the split with the highest score, and the score.

    The split is compared with random orders of the nights. The score is the number of standard
    deviations by which the sum of the normal scores before the split differs from its mean over all
    orders. It is infinite if the values on each side of the split are equal to each other.
    """
    n = len(x)
    values = np.unique(x)
    if len(values) == 1:
        return FEWEST_NIGHTS, 0.0
    scores = tied_scores(x)
    k = np.arange(FEWEST_NIGHTS, n - FEWEST_NIGHTS + 1)
    deviation = np.sqrt((scores @ scores) / (n - 1) * k * (n - k) / n)
    z = np.abs(np.cumsum(scores)[k - 1]) / deviation
    i = int(np.argmax(z))
    exact = len(values) == 2 and len(set(x[: k[i]])) == len(set(x[k[i] :])) == 1
    return int(k[i]), math.inf if exact and n >= ENOUGH else float(z[i])


def tied_scores(x: np.ndarray) -> np.ndarray:
    """Return the normal scores of the nights' ranks.

    Nights with equal values have the same score. All scores are 0 if all values are equal.
    """
    values, rank = np.unique(x, return_inverse=True)
    if len(values) == 1:
        return np.zeros(len(x))
    counts = np.bincount(rank)
    sums = np.add.reduceat(normal_scores(len(x)), np.cumsum(counts) - counts)
    scores: np.ndarray = (sums / counts)[rank]
    return scores


def located(x: np.ndarray, at: int) -> int:
    """Return the first night of the new level: the split at which both levels fit best.

    Outliers have less weight (Huber 1964). Ranks alone would be wrong by one night if one side is
    much longer than the other.
    """
    for _ in range(2):
        levels = np.array([np.median(x[:at]), np.median(x[at:])])
        apart = np.concatenate([x[:at] - levels[0], x[at:] - levels[1]])
        deviation = 1.4826 * float(np.median(np.abs(apart))) or 1e-12
        off = np.abs(x - levels[:, None]) / deviation
        cost = np.where(off < 1.5, off**2 / 2, 1.5 * off - 1.125)
        both = np.cumsum(cost[0]) + cost[1].sum() - np.cumsum(cost[1])
        at = FEWEST_NIGHTS + int(np.argmin(both[FEWEST_NIGHTS - 1 : len(x) - FEWEST_NIGHTS]))
    return at


@cache
def normal_scores(n: int) -> np.ndarray:
    """Return the clipped normal scores of ``n`` ranks."""
    normal = NormalDist()
    scores = [normal.inv_cdf((i + 0.5) / n) for i in range(n)]
    return np.asarray(np.clip(scores, -CUT, CUT))


def shift(before: np.ndarray, after: np.ndarray) -> Size:
    """Return the size of a change. Its interval is that of the rank-sum test."""
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
    """Return (nights, probabilities, scores[nights, probabilities]) of ``null.json``."""
    table = json.loads(NULL.read_text(encoding="utf-8"))
    scores = {int(n): row for n, row in table["scores"].items()}
    return np.array(list(scores)), np.array(table["p"]), np.array(list(scores.values()))


@cache
def _brief_null(n: int) -> float:
    """Return the score that chance exceeds with probability ``BRIEF_P`` for temporary levels."""
    brief_scores = json.loads(NULL.read_text(encoding="utf-8"))["brief"]
    nights = [int(score) for score in brief_scores]
    return float(np.interp(math.log(n), np.log(nights), list(brief_scores.values())))


def p_value(score: float, n: int) -> float:
    """Return the probability that ``n`` nights in random order have as high a score.

    Scores above those in the table are extrapolated as for a normal distribution: the logarithm of
    the probability falls with the square of the score.
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
        if last - before < 1e-9:  # with so few nights, no order has a higher score
            return float(p[-1])
        slope = math.log(p[-1] / p[-4]) / (last - before)
        return float(p[-1] * math.exp(slope * (score**2 - last)))
    if above == 0:
        return float(p[0])
    low = row[above - 1]
    high = row[above]
    share = 1.0 if high <= low else (score - low) / (high - low)
    return float(math.exp((1 - share) * math.log(p[above - 1]) + share * math.log(p[above])))


def leap(values: Sequence[float], jump: float, sds: float = 6.0) -> bool:
    """Return whether the newest night is far from the nights before it.

    It is far if it differs from their median by more than ``jump`` and by more than ``sds`` robust
    standard deviations. One night is not a change of level, so it only requests another run.
    """
    *before, last = values[-ENOUGH - 1 :]
    if len(before) < FEWEST_NIGHTS:
        return False
    middle = median(before)
    deviation = 1.4826 * median(abs(v - middle) for v in before)
    return abs(last - middle) > max(jump, sds * deviation)
