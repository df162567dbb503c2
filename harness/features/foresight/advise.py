"""Which size to measure next: the one that narrows a target's interval most for what it costs, and
the one that would show a knee which no term knows.
"""

from dataclasses import dataclass, replace

import numpy as np

from harness.features.foresight.infer import Posterior, foresee
from harness.features.foresight.shapes import Shape

#: Draws for covariances; they are good to a few percent.
NUM_DRAWS = 2000
#: The size that shows a knee has this share of the target's ranks, and of its batch. What ranks
#: exchange stays what it is, so a small batch shows it, and a knee of it, as nothing small does.
KNEE_RANKS = 2
KNEE_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One size to measure: what ``sd`` of ln(step time) the target has before and after.

    ``cost_s`` is GPU-seconds of one step. ``doubling_sd`` is what twice the largest size would
    leave, for comparison. ``knee`` would show a knee that no term knows: its step then takes more
    than ``knee_s``. None where the largest calibrated size has as many ranks.
    """

    shape: Shape
    before_sd: float
    after_sd: float
    cost_s: float
    doubling_sd: float
    knee: Shape | None = None
    knee_s: float | None = None


def knee_size(largest: Shape, target: Shape) -> Shape | None:
    """Half of the target's ranks with an eighth of its batch: a network that is shared from some N
    on shows there, wherever up to there it begins.
    """
    inner = target.tensor * target.context * target.stages
    ranks = target.ranks // KNEE_RANKS // inner * inner
    if ranks <= largest.ranks:
        return None
    micro_batch = max(1.0, target.micro_batch / KNEE_BATCH)
    return replace(target, ranks=ranks, micro_batch=micro_batch)


def candidates(largest: Shape, target: Shape) -> list[Shape]:
    """Up to eight times the largest calibrated size but well below the target, and smaller batches.

    A small batch shows what a large world will show: exchange and waiting that compute hides.
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
    """The best size that costs no more GPU-seconds a step than doubling the largest one.

    What a measurement would leave of the target's variance follows from their covariance now; no
    figure need be known for that.
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
    """Seconds of a step that nine in ten draws stay under."""
    draws = foresee(known, [shape], num=NUM_DRAWS).draws
    return float(np.exp(np.quantile(draws, 0.9)))
