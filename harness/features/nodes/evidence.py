"""How strongly launches show that a node is slow, compared with launches without it."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: How much slower a node may be, as logarithms; each stands for an eighth more and less.
SLOWER = np.geomspace(0.01, 2.0, 24)


SPREAD = 0.125


#: Scatter that is expected before any launch is seen, and of how many launches that is worth.
USUAL = 0.005


WORTH = 4.0


#: Launches that the expected shape of noise is worth beside those that were seen; in it, the share
#: of odd launches, and their scatter: of MLPerf's clusters 16 % have one that is 0.5 % slower.
SHAPE = 32.0


ODD = 0.05


WIDE = 0.02


#: No clock and no fabric is steadier.
LEAST_SCATTER = 0.0005


#: Launches that differ by less than this share of the scatter are counted as alike.
ALIKE = 0.1


class Scatter:
    """How launches scatter that nothing slow had a part in, as a density of log times."""

    def __init__(self, others: ArrayLike) -> None:
        """``others`` are log times, of one launch or more."""
        logs = np.asarray(others, dtype=float)
        self.centre = float(np.median(logs))
        logs = logs - self.centre
        spread = 1.4826 * float(np.median(np.abs(logs)))
        usual = (len(logs) * spread**2 + WORTH * USUAL**2) / (len(logs) + WORTH)
        self._scale = max(math.sqrt(usual), LEAST_SCATTER)
        bins = np.rint(logs / (ALIKE * self._scale))
        places, self._counts = np.unique(bins, return_counts=True)
        self._places = places * ALIKE * self._scale
        # an odd launch may be more or less odd
        self._widths = np.maximum(self._scale / 2, np.abs(self._places) / 3)

    def log_density(self, x: NDArray[np.float64], spread: ArrayLike = 0.0) -> NDArray[np.float64]:
        """Of times over the centre; ``spread`` is what is not known of each beside the noise."""
        more = np.broadcast_to(np.asarray(spread, dtype=float), x.shape)
        widths = np.hypot(self._widths, more[..., None])
        scale = np.hypot(self._scale, more)
        seen = _density(x[..., None] - self._places, widths) @ self._counts
        shape = (1 - ODD) * _density(x, scale) + ODD * _density(x, np.maximum(scale, WIDE))
        return np.asarray(np.log((seen + SHAPE * shape) / (self._counts.sum() + SHAPE)))

    def log_ratios(self, times: ArrayLike, slower: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log likelihood of each log time if its node is slower by each, over that if it is not:
        of shape (times, slower).
        """
        x = np.asarray(times, dtype=float)[:, None] - self.centre
        return self.log_density(x - slower, SPREAD * slower) - self.log_density(x)


def log_evidence(times: ArrayLike, others: ArrayLike, least: float) -> tuple[float, float]:
    """(log of the e-value that these launches are slower by ``least`` or more, their excess).

    ``times`` and ``others`` are log times, the excess is their median over that of the others.
    """
    x, rest = np.asarray(times, dtype=float), np.asarray(others, dtype=float)
    if not len(x) or not len(rest):
        return 0.0, 0.0
    noise = Scatter(rest)
    slower = SLOWER[math.log1p(least) <= SLOWER]
    return log_mean(noise.log_ratios(x, slower).sum(axis=0)), float(np.median(x)) - noise.centre


def log_mean(logs: NDArray[np.float64]) -> float:
    """The logarithm of the mean of what these are logarithms of."""
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).mean()))


def _density(x: NDArray[np.float64], scale: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Student's t with 3 degrees of freedom: launches have heavy tails."""
    density: NDArray[np.float64] = 0.3675525969478614 / scale / (1 + (x / scale) ** 2 / 3) ** 2
    return density
