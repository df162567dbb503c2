"""Stretch intervals by the factors that published scaling sweeps have shown to be necessary.

python -m benchmarks.foresight.learn # writes learned.json anew, in seconds

The file lists the families (tables of one source) separately, so that each family is predicted with
factors from the other ones alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np

from harness.features.foresight.priors import PRIORS, Belief
from harness.features.foresight.terms import Unknown

LEARNED = Path(__file__).with_name("learned.json")
#: Share of true values that an interval shall cover. For a normal distribution this interval
#: extends HALF_SDS standard deviations on each side of the mean.
LEVEL = 0.8
HALF_SDS = 1.2816


class Regime(StrEnum):
    """The way in which a target differs from all calibrated sizes.

    If several regimes apply, the last of them in this list is used.
    """

    RESIZED = "other size or batch"
    RESCHEDULED = "other schedule"
    REMODELLED = "other model"
    UNSEEN = "limited by what was not seen"
    CURVE = "number of ranks alone"


#: Smallest stretch. Families with small errors do not narrow intervals, because the next family may
#: have larger ones.
LEAST_STRETCH = 1.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The priors for a new family, and the factor that stretches the intervals of each regime."""

    beliefs: Mapping[Unknown, Belief]
    stretch: Mapping[Regime, float]
    families: tuple[str, ...]


UNTAUGHT = Learned(beliefs=PRIORS, stretch=dict.fromkeys(Regime, 1.0), families=())


def learned(leaving_out: str = "") -> Learned:
    """Return the priors, and the stretch of each regime, learned from all families but one."""
    kept = {name: misses for name, misses in _file().items() if name != leaving_out}
    return Learned(
        beliefs=PRIORS,
        stretch={regime: _stretch(regime, kept) for regime in Regime},
        families=tuple(kept),
    )


@cache
def _file() -> Mapping[str, Mapping[str, list[float]]]:
    document: Mapping[str, Mapping[str, list[float]]] = (
        json.loads(LEARNED.read_text(encoding="utf-8")) if LEARNED.exists() else {}
    )
    return document


def _stretch(regime: Regime, kept: Mapping[str, Mapping[str, list[float]]]) -> float:
    """Return the factor by which intervals had to be wider to cover 80 % of a regime's errors.

    The errors of one family are not independent of each other, so the weight of a family grows only
    with the square root of the number of its errors.
    """
    misses = [np.array(of[regime.name]) for of in kept.values() if regime.name in of]
    if not misses:
        return LEAST_STRETCH
    every = np.concatenate(misses)
    weight = np.concatenate([np.full(len(miss), len(miss) ** -0.5) for miss in misses])
    order = np.argsort(every)
    reached = np.cumsum(weight[order]) - weight[order] / 2
    quantile = float(np.interp(LEVEL * weight.sum(), reached, every[order]))
    return max(LEAST_STRETCH, quantile / HALF_SDS)
