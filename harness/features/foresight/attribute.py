"""Which term limits a step, and where the efficiency went that was lost since the base."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight import terms
from harness.features.foresight.infer import Posterior
from harness.features.foresight.shapes import Shape
from harness.features.foresight.terms import ForeseenTerm

Array = NDArray[np.float64]
#: What takes less than this share limits nothing.
LITTLE = 0.02
#: An exchange that takes this share of a step is a knee, where it took a third of that before.
KNEE = 0.10
LIKELY = 0.2


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """``shares`` of the step sum to 1; ``lost`` sums to 1 - efficiency."""

    limiter: ForeseenTerm
    shares: Mapping[ForeseenTerm, float]
    lost: Mapping[ForeseenTerm, float]


def limiter(
    shares: Mapping[ForeseenTerm, float], lost: Mapping[ForeseenTerm, float]
) -> ForeseenTerm:
    """The term that took most of the efficiency; where little was lost, the largest overhead of the
    step.

    Compute where neither is more than LITTLE. Growth is none: it only says that something is not
    explained.
    """
    causes = [
        term for term in ForeseenTerm if term not in (ForeseenTerm.COMPUTE, ForeseenTerm.GROWTH)
    ]
    for of in (lost, shares) if sum(lost.values()) > LITTLE else (shares,):
        largest = max(causes, key=of.__getitem__)
        if of[largest] >= LITTLE:
            return largest
    return ForeseenTerm.COMPUTE


def attribute(
    known: Posterior, base: Shape, base_s: float, shapes: Sequence[Shape], step_s: Array
) -> list[Attribution]:
    """Of each shape, given its predicted ``step_s`` and what was measured at the base.

    Time is counted for equal work. What the terms don't sum up to (the correction by calibrated
    neighbours) is growth, so that everything adds up exactly.
    """
    given = terms.seconds(known.facts([base, *shapes]), known.mode[None, :])
    total = np.array([base_s, *step_s])
    exact = {term: value[0] for term, value in given.items()}
    exact[ForeseenTerm.GROWTH] = exact[ForeseenTerm.GROWTH] + total - sum(exact.values())
    work = np.array([shape.flops / shape.ranks for shape in (base, *shapes)])
    attributions = []
    for i in range(1, len(total)):
        shares = {term: float(value[i] / total[i]) for term, value in exact.items()}
        lost = {
            term: float((value[i] / work[i] - value[0] / work[0]) / (total[i] / work[i]))
            for term, value in exact.items()
        }
        attributions.append(Attribution(limiter=limiter(shares, lost), shares=shares, lost=lost))
    return attributions


def unseen(known: Posterior, shape: Shape) -> bool:
    """Whether an exchange may well limit the target that was small wherever it was calibrated.

    Then nothing measured speaks of it: it comes from priors alone. May well: in LIKELY of what the
    calibration leaves possible it takes KNEE of the step, and three times as much as ever before,
    or crosses a network that was never crossed before.
    """
    facts = known.facts([*known.shapes, shape])
    given = terms.seconds(facts, known.draws(200))
    total = sum(given.values())
    for exchange, nodes in (
        (given[ForeseenTerm.TENSOR], facts.tensor_nodes),
        (given[ForeseenTerm.BYTES] + given[ForeseenTerm.LATENCY], facts.data_nodes),
    ):
        share = exchange / total
        crosses = nodes[-1] > nodes[:-1].max() == 0
        new = crosses | (share[:, -1] > 3 * share[:, :-1].max(axis=1))
        if ((share[:, -1] > KNEE) & new).mean() > LIKELY:
            return True
    return False
