"""How far the truth lies from the model: it grows with the distance from what was calibrated on.

The discrepancy of ln(step time) is a Gaussian process. Along each way in which two shapes differ
it walks at random, so that its variance grows with the distance, up to a limit. Points near each
other share it: a target is corrected by what its neighbours were off, and far ones hardly matter.
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
    """Standard deviations of ln(step time)."""

    per_doubling: float = 0.012  # of ranks
    per_batch: float = 0.03  # of the micro-batch, for a factor of e
    per_micros: float = 0.015  # of the number of micro-batches, for a factor of e
    per_schedule: float = 0.016  # another schedule
    per_model: float = 0.03  # another model
    most: float = 0.12  # between any two points
    replicate: float = 0.006  # between two runs of one point


WALK = Walk()


def covariance(left: Sequence[Shape], right: Sequence[Shape], walk: Walk = WALK) -> Array:
    """Of the discrepancies of two lists of shapes: (left, right), without replicate noise."""
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
    """In what shapes differ by degrees."""
    return [
        (walk.per_doubling, lambda shape: log2(shape.ranks)),
        (walk.per_batch, lambda shape: log(shape.micro_batch)),
        (walk.per_micros, lambda shape: log(shape.micros)),
    ]


def _kinds(walk: Walk) -> list[tuple[float, Callable[[Shape], object]]]:
    """In what they differ or don't."""
    return [
        (walk.per_schedule, lambda shape: shape.schedule),
        (walk.per_model, lambda shape: shape.model),
    ]
