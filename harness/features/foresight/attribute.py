"""Find the term that limits a step, and divide the efficiency lost since the base among
the terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight import terms
from harness.features.foresight.infer import Posterior
from harness.features.foresight.shapes import Shape
from harness.features.foresight.terms import ForeseenTerm

Array = NDArray[np.float64]
#: Share of a step below which a term does not count as limiting.
LITTLE = 0.02
#: An exchange counts as a knee of the scaling curve if it takes more than the share KNEE of a step,
#: and either more than three times its share at any calibrated size or a network that no calibrated
#: size used. This must happen in more than the share LIKELY of the posterior draws.
KNEE = 0.10
LIKELY = 0.2


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The parts of a step and of the lost efficiency, by term.

    ``shares`` maps each term to its share of the step, and ``lost`` to the efficiency that it
    costs. The shares sum to 1, and the lost efficiency to 1 - efficiency.
    """

    limiter: ForeseenTerm
    shares: Mapping[ForeseenTerm, float]
    lost: Mapping[ForeseenTerm, float]


def limiter(
    shares: Mapping[ForeseenTerm, float], lost: Mapping[ForeseenTerm, float]
) -> ForeseenTerm:
    """Return the term that cost most efficiency, or the largest overhead if little was lost.

    Return compute if neither reaches ``LITTLE``. Growth is never returned, because it only states
    that a part of the step is unexplained.
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
    """Attribute the step of each shape, given its predicted ``step_s`` and the measured base.

    Times are compared for equal work. The difference between the sum of the terms and ``step_s``,
    which comes from the correction by calibrated sizes nearby, counts as growth. Thus everything
    adds up exactly.
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
    """Return whether the target may be limited by an exchange that was small at all calibrated
    sizes.

    No measurement supports a prediction of that exchange, which then rests on priors alone. The
    exchange counts if in more than ``LIKELY`` of the posterior draws it takes more than ``KNEE`` of
    the step, and either takes over three times its largest share so far or crosses a network that
    no calibrated size crossed.
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
