"""Prior beliefs about the unknowns, before anything is measured: a median and a spread of each.

Spreads are standard deviations of natural logarithms. A spread of 0.7 means that the value lies
within a factor of two in two of three cases.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight.terms import UNKNOWNS, Unknown

Array = NDArray[np.float64]


class Belief(NamedTuple):
    median: float
    spread: float


#: The sources are listed in docs/foresight.md, "What is assumed".
PRIORS: dict[Unknown, Belief] = {
    Unknown.RATE: Belief(1e14, 3.0),
    Unknown.LINK: Belief(0.75, 0.25),
    Unknown.NETWORK: Belief(0.7, 0.4),
    Unknown.LATENCY: Belief(1.3, 0.6),
    Unknown.UNHIDDEN: Belief(0.6, 1.0),
    Unknown.WAIT_S: Belief(0.010, 0.8),
    Unknown.FIXED: Belief(2.5, 1.0),
    Unknown.GROWTH: Belief(0.005, 1.0),
    Unknown.NARROW: Belief(800.0, 0.5),
    Unknown.SPLIT: Belief(0.02, 0.5),
    Unknown.CHUNKS: Belief(0.05, 0.4),
}
#: Spread of the compute rates of different models on one machine. The second value applies if the
#: FLOPs of the models are unknown.
MODEL_SPREAD = 0.04
MODEL_SPREAD_UNSIZED = 3.0


def vectors(beliefs: Mapping[Unknown, Belief], num_models: int, sized: bool) -> tuple[Array, Array]:
    """Return means and standard deviations of the unknowns, then of the rate of each model.

    ``sized`` says whether the FLOPs of all models are known.
    """
    known = [beliefs[name] for name in UNKNOWNS]
    spread = MODEL_SPREAD if sized else MODEL_SPREAD_UNSIZED
    mean = [*(np.log(b.median) for b in known), *np.zeros(num_models)]
    return np.array(mean), np.array([*(b.spread for b in known), *np.full(num_models, spread)])
