"""Whether a level changed at once, or its nights wander: by how much likelier the one is.

Nights of one level may depend on each other: a node is kept for weeks, a building has seasons, a
figure walks. Such nights seem to change level by themselves. How they depend on
each other is not known, and 60 nights do not show it: a step looks like a walk, and a walk like
steps. So nothing is estimated first. A step beside independent nights, beside autoregressive ones,
beside a walk, a drift and days of a week is held against the same nights without the step:
likelihoods, restricted (Patterson & Thompson 1971) and weighed by how usual such nights are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: Nights on either side of a step that are looked at.
AROUND = 45
#: A step is known to so many nights.
NEAR = 2
#: How usual nights are: independent, with days of a week, autoregressive, walking, going one way.
USUAL = (0.35, 0.1, 0.2, 0.2, 0.15)
#: Variances over that of independent noise: of the days of a week, of a walk's every night, and
#: of a straight line's nights.
OF_WEEKDAYS = (0.5, 2.0, 8.0)
OF_WALKS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
OF_LINES = (1.0, 4.0, 16.0)
#: Correlations of neighbouring nights, and shares of the variance that have them.
CORRELATIONS = (0.3, 0.5, 0.7, 0.85, 0.95)
SHARES = (0.5, 1.0)
#: Nights that are so many deviations off their neighbours are cut off there, or taken for these.
CUT = 2.5
WILD = 5.0
NEIGHBOURS = 4


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Nights that depend on each other in several ways, made independent: each of ``matrices``
    times them. ``log_weights`` is how usual such nights are, with the likelihoods' determinants.
    """

    matrices: np.ndarray  # (ways, nights, nights)
    log_weights: np.ndarray


def nats(
    values: Sequence[float] | np.ndarray,
    at: int,
    others: Sequence[int] = (),
    nodes: Sequence[str] = (),
) -> float:
    """By how many nats a step at ``at``, or a night or two beside it, is likelier than none.

    Args:
        values: one a night, in their order.
        at: the first night of the new level.
        others: first nights of other levels, which are there in any case.
        nodes: where each night was measured; what nodes differ by is fitted in any case.
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
    """Logarithms of the restricted likelihoods without a step and with the best one, of each way in
    which nights may depend on each other.
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
    """The nights without wild ones: a step and a walk stay as they are."""
    usual = np.array(
        [np.median(x[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1]) for i in range(len(x))]
    )
    deviation = 1.4826 * float(np.median(np.abs(x - usual))) or 1e-12
    off = (x - usual) / deviation
    return usual + deviation * np.where(np.abs(off) > WILD, 0.0, np.clip(off, -CUT, CUT))


@lru_cache(maxsize=16)
def _whitening(n: int) -> Whitening:
    """All ways in which ``n`` nights may depend on each other."""
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
