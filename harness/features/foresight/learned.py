"""What published ladders have taught: priors that moved, and how much wider intervals must be.

    python -m harness.features.foresight.learn      # writes learned.json anew, in seconds

The file keeps families apart, so that a family is predicted from the others alone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.features.foresight.priors import PRIORS, Belief
from harness.features.foresight.terms import Unknown

LEARNED = Path(__file__).with_name("learned.json")


class Regime(StrEnum):
    """How a target differs from all that was calibrated on; the last that applies counts."""

    RESIZED = "other size or batch"
    RESCHEDULED = "other schedule"
    REMODELLED = "other model"
    UNSEEN = "limited by what was not seen"


#: Widths before any family was seen: a limiter that nothing measured speaks of deserves more.
STRETCH = {r: 1.1 if r is Regime.UNSEEN else 1.0 for r in Regime}
#: How many families the widths before are worth.
WORTH = 2.0
#: A family that was missed by more than so many standard deviations counts as if by so many.
MOST_Z = 3.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Beliefs for a new family, and the factor by which each regime's intervals are stretched."""

    beliefs: Mapping[Unknown, Belief]
    stretch: Mapping[Regime, float]
    families: tuple[str, ...]


UNTAUGHT = Learned(beliefs=PRIORS, stretch=STRETCH, families=())


def learned(leaving_out: str = "") -> Learned:
    """What all families but one have taught."""
    kept = {name: family for name, family in _file().items() if name != leaving_out}
    return Learned(
        beliefs={u: _belief(u, kept) for u in Unknown},
        stretch={r: _stretch(r, kept) for r in Regime},
        families=tuple(kept),
    )


@cache
def _file() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(LEARNED.read_text()) if LEARNED.exists() else {}
    return document


def _belief(unknown: Unknown, kept: Mapping[str, Any]) -> Belief:
    """Families scatter about a common value; half of a prior's variance is that scatter.

    The common value starts at the prior and moves as far as the families were able to tell.
    """
    prior = PRIORS[unknown]
    scatter = prior.spread**2 / 2
    precision = 1 / scatter
    total = float(np.log(prior.median)) / scatter
    for family in kept.values():
        value, sd = family["unknowns"][unknown.name]
        # What a family's fit says beyond the prior that it began with.
        gained = max(1 / sd**2 - 1 / prior.spread**2, 0.0)
        if gained * scatter < 1e-3:
            continue
        alone = (value / sd**2 - np.log(prior.median) / prior.spread**2) / gained
        weight = 1 / (1 / gained + scatter)
        precision = precision + weight
        total = total + weight * alone
    return Belief(float(np.exp(total / precision)), float(np.sqrt(1 / precision + scatter)))


def _stretch(regime: Regime, kept: Mapping[str, Any]) -> float:
    """From the mean square of each family's standardised misses: its points are not independent."""
    squares = [
        family["squares"][regime.name]
        for family in kept.values()
        if regime.name in family["squares"]
    ]
    start = STRETCH[regime] ** 2
    total = WORTH * start + sum(min(s, MOST_Z**2) for s in squares)
    return float(np.sqrt(total / (WORTH + len(squares))))
