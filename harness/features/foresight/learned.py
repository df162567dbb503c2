"""By how much wider intervals must be than the terms say, as published ladders have shown.

    python -m benchmarks.foresight.learn      # writes learned.json anew, in seconds

The file keeps families apart, so that a family is predicted from the others alone.
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
#: The share of truths that an interval is to hold; standard deviations in half of a normal's.
LEVEL = 0.8
HALF_SDS = 1.2816


class Regime(StrEnum):
    """How a target differs from all that was calibrated on; the last that applies counts."""

    RESIZED = "other size or batch"
    RESCHEDULED = "other schedule"
    REMODELLED = "other model"
    UNSEEN = "limited by what was not seen"


#: No family makes intervals narrower than this: the next one may obey less.
LEAST_STRETCH = 1.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Beliefs for a new family, and the factor by which each regime's intervals are stretched."""

    beliefs: Mapping[Unknown, Belief]
    stretch: Mapping[Regime, float]
    families: tuple[str, ...]


UNTAUGHT = Learned(beliefs=PRIORS, stretch=dict.fromkeys(Regime, 1.0), families=())


def learned(leaving_out: str = "") -> Learned:
    """The misses of all families but one, as priors and as how far intervals are stretched."""
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
    """The stretch that would have held 80 % of the misses. A family's are not independent of each
    other, so its weight grows with the root of their number.
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
