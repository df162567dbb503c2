"""Model the error of the predicted step time, which grows with the distance from calibrated sizes.

The discrepancy of ln(step time) is a Gaussian process. In each dimension in which two shapes differ
it is a random walk, so its variance grows with the distance, up to a limit. Nearby points have
nearly the same discrepancy. A target is therefore corrected by the residuals of nearby calibrated
points, and distant points hardly matter.
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
    """Standard deviations of the discrepancy of ln(step time) between two points."""

    per_doubling: float = 0.012  # if the number of ranks differs by a factor of 2
    per_batch: float = 0.03  # if the micro-batch differs by a factor of e
    per_micros: float = 0.015  # if the number of micro-batches differs by a factor of e
    per_schedule: float = 0.016  # if the schedules differ
    per_model: float = 0.03  # if the models differ
    most: float = 0.12  # upper limit, however much two points differ
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
    """Return the dimensions of a shape that are numbers, as pairs (rate of the walk, value)."""
    return [
        (walk.per_doubling, lambda shape: log2(shape.ranks)),
        (walk.per_batch, lambda shape: log(shape.micro_batch)),
        (walk.per_micros, lambda shape: log(shape.micros)),
    ]


def _kinds(walk: Walk) -> list[tuple[float, Callable[[Shape], object]]]:
    """Return the dimensions of a shape that are not numbers, as pairs (rate of the walk, value)."""
    return [
        (walk.per_schedule, lambda shape: shape.schedule),
        (walk.per_model, lambda shape: shape.model),
    ]
