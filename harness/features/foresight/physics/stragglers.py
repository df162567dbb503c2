"""The cost of waiting for the slowest rank."""

from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr


@lru_cache(maxsize=4096)
def slowest_normal(ranks: int) -> float:
    """Return E[max of N standard normals], in standard deviations: 0 for one, 0.564 for two.

    The expectation is integrated from the density of the maximum. The approximation sqrt(2 ln N) is
    0.4 to 0.6 too large.
    """
    if ranks <= 1:
        return 0.0
    grid = np.linspace(-9.0, 9.0, 6001)
    log_density = -(grid**2) / 2 - np.log(2 * np.pi) / 2
    density = ranks * np.exp((ranks - 1) * log_ndtr(grid) + log_density)
    # The integrand vanishes at both ends, so a plain sum is as accurate as any other rule.
    return float(np.sum(grid * density) * (grid[1] - grid[0]))


def slowest_exponential(ranks: int) -> float:
    """Return E[max of N exponentials of mean 1], which is the harmonic number."""
    return float(np.sum(1 / np.arange(1, ranks + 1)))
