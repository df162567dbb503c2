"""What waiting for the slowest rank costs."""

from functools import lru_cache

import numpy as np
from scipy import integrate, stats


@lru_cache(maxsize=4096)
def slowest_normal(ranks: int) -> float:
    """E[max of N standard normals], in standard deviations: 0 for one, 0.564 for two.

    The integral of 1 - F^N below which the maximum lies; sqrt(2 ln N) is 0.4 to 0.6 too large.
    """
    if ranks <= 1:
        return 0.0
    grid = np.linspace(-9.0, 9.0, 6001)
    log_below = stats.norm.logcdf(grid)
    density = ranks * np.exp((ranks - 1) * log_below + stats.norm.logpdf(grid))
    return float(integrate.simpson(grid * density, x=grid))


def slowest_exponential(ranks: int) -> float:
    """E[max of N exponentials of mean 1]: the harmonic number."""
    return float(np.sum(1 / np.arange(1, ranks + 1)))
