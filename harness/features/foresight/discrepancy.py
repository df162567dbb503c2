"""Model the error of the predicted step time, which grows with the distance from calibrated sizes.

The discrepancy of ln(step time) is a Gaussian process. In each dimension in which two shapes differ
it is a random walk, so its variance grows with the distance, up to a limit. Nearby points share the
discrepancy. A target is therefore corrected by the residuals of calibrated points nearby, and
distant points hardly matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, log2

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight.shapes import Shape

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Standard deviations of the discrepancy of ln(step time)."""

    per_doubling: float = 0.012  # per doubling of the ranks
    per_batch: float = 0.03  # per factor of e of the micro-batch
    per_micros: float = 0.015  # per factor of e of the number of micro-batches
    per_schedule: float = 0.016  # for another schedule
    per_model: float = 0.03  # for another model
    most: float = 0.12  # limit between any two points
    replicate: float = 0.006  # between two runs of the same point


WALK = Walk()


def covariance(left: Sequence[Shape], right: Sequence[Shape], walk: Walk = WALK) -> Array:
    """Return the covariance of the discrepancies of two lists of shapes, without replicate noise.

    The result has shape (left, right).
    """
    apart = np.zeros((len(left), len(right)))
    for rate, value in _ways(walk):
        a, b = (np.array([value(shape) for shape in shapes], float) for shapes in (left, right))
        apart += rate**2 * np.abs(a[:, None] - b[None, :])
    for rate, label in _kinds(walk):
        other = [[label(a) != label(shape) for shape in right] for a in left]
        apart += rate**2 * np.array(other, float).reshape(apart.shape)
    near: Array = walk.most**2 / 2 * np.exp(-apart / walk.most**2)
    return near


def _ways(walk: Walk) -> list[tuple[float, Callable[[Shape], float]]]:
    """Return the rates and values of the dimensions in which shapes differ by degrees."""
    return [
        (walk.per_doubling, lambda shape: log2(shape.ranks)),
        (walk.per_batch, lambda shape: log(shape.micro_batch)),
        (walk.per_micros, lambda shape: log(shape.micros)),
    ]


def _kinds(walk: Walk) -> list[tuple[float, Callable[[Shape], object]]]:
    """Return the rates and values of the dimensions in which shapes are either equal or not."""
    return [
        (walk.per_schedule, lambda shape: shape.schedule),
        (walk.per_model, lambda shape: shape.model),
    ]
