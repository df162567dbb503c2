"""Choose the size to measure next.

The first proposal narrows the interval of a target most for its cost. The second proposal would
show a knee of the scaling curve that no term of the model describes.
"""

from dataclasses import dataclass, replace

import numpy as np

from harness.features.foresight.infer import Posterior, foresee
from harness.features.foresight.shapes import Shape

#: Number of posterior draws for covariances, which are then accurate to a few percent.
NUM_DRAWS = 2000
#: The target's ranks and batch are divided by these numbers to get the size that would show a knee.
#: The bytes that ranks exchange do not depend on the batch, so a small batch exposes the exchange.
#: A size with few ranks cannot show such a knee.
KNEE_RANKS = 2
KNEE_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A size to measure next.

    ``before_sd`` and ``after_sd`` are the standard deviations of the target's ln(step time) without
    and with that measurement. For comparison, ``doubling_sd`` is the standard deviation after a
    measurement of twice the largest size. ``cost_s`` is the GPU-seconds of one step. ``knee`` is a
    second size, which shows whether the scaling curve has a knee that no term describes. There is
    such a knee if a step of that size takes more than ``knee_s`` seconds. ``knee`` and ``knee_s``
    are None if the largest calibrated size has at least as many ranks as this second size.
    """

    shape: Shape
    before_sd: float
    after_sd: float
    cost_s: float
    doubling_sd: float
    knee: Shape | None = None
    knee_s: float | None = None


def knee_size(largest: Shape, target: Shape) -> Shape | None:
    """Return a shape with half of the target's ranks and an eighth of its batch.

    In some networks, ranks compete for links once there are more than a certain number of them.
    This shape shows that competition if it begins at or below its number of ranks. Return None if
    the largest calibrated size has at least as many ranks.
    """
    inner = target.tensor * target.context * target.stages
    ranks = target.ranks // KNEE_RANKS // inner * inner
    if ranks <= largest.ranks:
        return None
    micro_batch = max(1.0, target.micro_batch / KNEE_BATCH)
    return replace(target, ranks=ranks, micro_batch=micro_batch)


def candidates(largest: Shape, target: Shape) -> list[Shape]:
    """Return sizes up to eight times the largest calibrated one, also with smaller batches.

    The sizes stay well below the target. A small batch and a large world have the same effect:
    compute no longer hides the exchange and the waiting.
    """
    most = max(2 * largest.ranks, target.ranks // 4)
    grown = [replace(largest, ranks=n * largest.ranks) for n in (1, 2, 4, 8)]
    grown = [shape for shape in grown if shape.ranks <= most]
    shapes = [
        replace(shape, micro_batch=max(1.0, shape.micro_batch * share))
        for shape in grown
        for share in (1.0, 0.5, 0.25, 0.125)
    ]
    shapes += [
        replace(shape, micros=max(1, round(shape.micros * share)))
        for shape in shapes
        for share in (0.5, 0.25)
    ]
    return [shape for shape in dict.fromkeys(shapes) if shape not in (largest, target)]


def advise(known: Posterior, target: Shape) -> Advice:
    """Return the best size to measure.

    A step of it costs at most as many GPU-seconds as a step at twice the largest calibrated size.
    The variance that a measurement would leave follows from the present covariance of the candidate
    and the target. The measured value itself is not needed for that.
    """
    largest = max(
        (shape for shape in known.shapes if shape.model == target.model),
        key=lambda shape: shape.ranks,
    )
    doubled = replace(largest, ranks=2 * largest.ranks)
    sizes = [*candidates(largest, target), doubled]
    seen = foresee(known, [target, *sizes], num=NUM_DRAWS)
    together = np.cov(seen.draws.T)
    before = together[0, 0]
    after = before - together[0, 1:] ** 2 / np.diag(together)[1:]
    cost = np.array([size.ranks for size in sizes]) * np.exp(seen.middle[1:])
    affordable = np.where(cost <= cost[-1] * 1.001, after, np.inf)
    best = int(np.argmin(affordable))
    knee = knee_size(largest, target)
    return Advice(
        shape=sizes[best],
        before_sd=float(np.sqrt(before)),
        after_sd=float(np.sqrt(after[best])),
        cost_s=float(cost[best]),
        doubling_sd=float(np.sqrt(after[-1])),
        knee=knee,
        knee_s=None if knee is None else _longest_s(known, knee),
    )


def _longest_s(known: Posterior, shape: Shape) -> float:
    """Return the 90 % quantile of the step time in seconds."""
    draws = foresee(known, [shape], num=NUM_DRAWS).draws
    return float(np.exp(np.quantile(draws, 0.9)))
