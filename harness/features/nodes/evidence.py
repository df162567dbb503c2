"""How strongly launches say that a node is slow, against launches that it had no part in.

The e-value of a node is the likelihood of its times if it is slower by d, over their likelihood if
it is like the others, as a mean over a ladder of d. It is a product over launches, so it holds
after any number of rounds, whoever decides when to stop (Ramdas, Grunwald, Vovk and Shafer,
"Game-theoretic statistics and safe anytime-valid inference", Statistical Science 38, 2023). How
the others scatter is read off them: no shape of noise is assumed where there are many.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: How much slower a node may be, as logarithms; each stands for a quarter more and less.
SLOWER = np.array([0.0125, 0.02, 0.035, 0.06, 0.1, 0.18, 0.35, 0.7, 1.4])
#: Scatter that is expected before any launch is seen, and of how many launches that is worth.
USUAL, WORTH = 0.005, 4.0
#: Launches that the expected shape of noise is worth beside those that were seen; in it, the share
#: of odd launches, and their scatter: of MLPerf's clusters 16 % have one that is 0.5 % slower.
SHAPE, ODD, WIDE = 32.0, 0.05, 0.02
#: No clock and no fabric is steadier.
LEAST = 0.0005


def log_evidence(times: ArrayLike, others: ArrayLike, least: float) -> tuple[float, float]:
    """(log of the e-value that these launches are slower by ``least`` or more, their excess).

    ``times`` and ``others`` are log times, the excess is their median over that of the others.
    What is no slower than the others is told as -inf, without counting it out.
    """
    x, rest = np.asarray(times, dtype=float), np.asarray(others, dtype=float)
    if not len(x) or not len(rest):
        return 0.0, 0.0
    rest = rest - (centre := float(np.median(rest)))
    x = x - centre
    if x.mean() <= 0:
        return -math.inf, float(np.median(x))
    spread = 1.4826 * float(np.median(np.abs(rest)))
    scale = math.sqrt((len(rest) * spread**2 + WORTH * USUAL**2) / (len(rest) + WORTH))
    scale = max(scale, LEAST)
    width = np.maximum(scale / 2, np.abs(rest) / 3)  # an odd launch may be more or less odd
    density = _density(x[:, None] - rest, width).sum(axis=1)
    shape = (1 - ODD) * _density(x, scale) + ODD * _density(x, max(scale, WIDE))
    like = (density + SHAPE * shape) / (len(rest) + SHAPE)
    slower = SLOWER[math.log1p(least) <= SLOWER]
    slow = _density(x[:, None] - slower, np.sqrt(scale**2 + (slower / 4) ** 2))
    ratios = (np.log(slow) - np.log(like)[:, None]).sum(axis=0)
    slowest = float(ratios.max())
    return slowest + math.log(float(np.exp(ratios - slowest).mean())), float(np.median(x))


def _density(x: NDArray[np.float64], scale: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Student's t with 3 degrees of freedom: launches have heavy tails."""
    density: NDArray[np.float64] = 0.3675525969478614 / scale / (1 + (x / scale) ** 2 / 3) ** 2
    return density
