"""Compute the evidence that a node is slow, from launches with the node and without it."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Hypotheses on how much slower a node is, as logarithms.
SLOWER = np.geomspace(0.01, 2.0, 24)


#: Relative width of each hypothesis. It stands for a slowness that is up to an eighth smaller or
#: larger.
SPREAD = 0.125


#: Prior standard deviation of log times, before any launch is measured.
USUAL = 0.005


#: Weight of the prior scatter, as a number of launches.
WORTH = 4.0


#: Weight of the prior shape of the noise, as a number of launches.
SHAPE = 32.0


#: Share of outliers (odd launches) in the prior shape of the noise.
ODD = 0.05


#: Scatter of outliers in the prior shape. In 16 % of the clusters of MLPerf, a launch is 0.5 %
#: slower than usual.
WIDE = 0.02


#: Smallest scatter of log times that is assumed. No clock and no fabric is steadier.
LEAST_SCATTER = 0.0005


#: Launches that differ by less than this share of the scatter are counted as equal.
ALIKE = 0.1


class Scatter:
    """The probability density of the log times of launches without slow nodes."""

    def __init__(self, others: ArrayLike) -> None:
        """Estimate the density. ``others`` are the log times of one launch or more."""
        logs = np.asarray(others, dtype=float)
        self.centre = float(np.median(logs))
        logs = logs - self.centre
        spread = 1.4826 * float(np.median(np.abs(logs)))
        usual = (len(logs) * spread**2 + WORTH * USUAL**2) / (len(logs) + WORTH)
        self._scale = max(math.sqrt(usual), LEAST_SCATTER)
        bins = np.rint(logs / (ALIKE * self._scale))
        places, self._counts = np.unique(bins, return_counts=True)
        self._places = places * ALIKE * self._scale
        # The density is a sum of kernels, one for each launch. Kernels of launches far from the
        # centre are wider, because the next outlier may deviate more or less.
        self._widths = np.maximum(self._scale / 2, np.abs(self._places) / 3)

    def log_density(self, x: NDArray[np.float64], spread: ArrayLike = 0.0) -> NDArray[np.float64]:
        """Return the log density of log times relative to the centre, in the shape of ``x``.

        ``spread`` is the uncertainty of each time in addition to the noise.
        """
        more = np.broadcast_to(np.asarray(spread, dtype=float), x.shape)
        widths = np.hypot(self._widths, more[..., None])
        scale = np.hypot(self._scale, more)
        seen = _density(x[..., None] - self._places, widths) @ self._counts
        shape = (1 - ODD) * _density(x, scale) + ODD * _density(x, np.maximum(scale, WIDE))
        return np.asarray(np.log((seen + SHAPE * shape) / (self._counts.sum() + SHAPE)))

    def log_ratios(self, times: ArrayLike, slower: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log likelihood ratios of shape (times, slower).

        Each ratio compares the hypothesis that the node is slower by one of the values in
        ``slower`` with the hypothesis that it is not slow.
        """
        x = np.asarray(times, dtype=float)[:, None] - self.centre
        return self.log_density(x - slower, SPREAD * slower) - self.log_density(x)


def log_evidence(times: ArrayLike, others: ArrayLike, least: float) -> tuple[float, float]:
    """Return (log e-value, excess) of launches with the log times ``times``.

    The e-value is the evidence that they are slower by ``least`` or more than launches with the log
    times ``others``. The excess is the median of ``times`` minus the median of ``others``.
    """
    x, rest = np.asarray(times, dtype=float), np.asarray(others, dtype=float)
    if not len(x) or not len(rest):
        return 0.0, 0.0
    noise = Scatter(rest)
    slower = SLOWER[math.log1p(least) <= SLOWER]
    return log_mean(noise.log_ratios(x, slower).sum(axis=0)), float(np.median(x)) - noise.centre


def log_mean(logs: NDArray[np.float64]) -> float:
    """Return the logarithm of the mean of exp(``logs``)."""
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).mean()))


def _density(x: NDArray[np.float64], scale: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the density of Student's t with 3 degrees of freedom, because launches have heavy
    tails.
    """
    density: NDArray[np.float64] = 0.3675525969478614 / scale / (1 + (x / scale) ** 2 / 3) ** 2
    return density
