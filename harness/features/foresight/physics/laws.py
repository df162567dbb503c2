"""The baselines that a prediction must beat: speed-up laws in N alone, and a straight line.

Each law is fitted to throughput at the calibrated sizes, and predicts the throughput at others. The
line has two unknowns, ``T = u t + f``, where u is the work of a rank in a step.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]


class Law(StrEnum):
    CONSTANT = "constant"
    AMDAHL = "Amdahl"
    USL = "USL"
    POWER = "power law"
    LINE = "line"


def line(known: Sequence[tuple[float, float]], to: float) -> float:
    """Return the seconds at ``to`` units by T = u t + f, fitted to pairs (u, T) with f >= 0.

    f is 0 if all u are equal.
    """
    u, t = np.asarray(known, float).T
    if len(set(u)) > 1:
        slope, rest = np.polyfit(u, t, 1)
        if rest >= 0 and slope > 0:
            return float(slope * to + rest)
    return float(to * np.exp(np.mean(np.log(t / u))))


def amdahl(n: Array, serial: float) -> Array:
    """Return the speed-up at fixed work (Amdahl 1967)."""
    return n / (1 + serial * (n - 1))


def usl(n: Array, contention: float, coherence: float) -> Array:
    """Return the speed-up by the Universal Scalability Law (Gunther 1993)."""
    return n / (1 + contention * (n - 1) + coherence * n * (n - 1))


def power(n: Array, exponent: float) -> Array:
    return n**exponent


#: The function of each law, with the lower and upper bounds of its coefficients.
_FORMS: dict[Law, tuple[Callable[..., Array], list[float], list[float]]] = {
    Law.AMDAHL: (amdahl, [0.0], [1.0]),
    Law.USL: (usl, [0.0, 0.0], [1.0, 1.0]),
    Law.POWER: (power, [0.0], [1.5]),
}


def extrapolate(law: Law, sizes: Sequence[int], rates: Sequence[float], to: Sequence[int]) -> Array:
    """Return the throughput at ``to`` by a law in N, fitted to ``rates`` at ``sizes``.

    The result has the unit of ``rates``. The constant law keeps the efficiency of the largest
    calibrated size. So does every other law if only one size is known, because one point does not
    determine a curve.
    """
    n, rate, wanted = (np.asarray(x, float) for x in (sizes, rates, to))
    last = int(np.argmax(n))
    if law is Law.CONSTANT or len(set(sizes)) < 2:
        constant: Array = rate[last] / n[last] * wanted
        return constant
    form, low, high = _FORMS[law]

    def miss(x: Array) -> Array:
        return np.asarray(x[0] + np.log(form(n, *x[1:])) - np.log(rate))

    start = [float(np.log(rate[0] / n[0])), *(0.01 if h <= 1 else 1.0 for h in high)]
    bounds = ([-np.inf, *low], [np.inf, *high])
    optimum = least_squares(miss, start, bounds=bounds, x_scale=[1.0] + [0.01] * len(low))
    fitted: Array = np.exp(optimum.x[0]) * form(wanted, *optimum.x[1:])
    return fitted
