"""Predict an efficiency from the number of ranks alone, as other trainings have scaled.

It is used if a model of the step lacks facts: the bytes that ranks exchange are not stated, or only
one rank was measured, which exchanges nothing.

rates of the measured sizes -> change of ln(rate) in published sweeps of other families -> median,
and the interval that contains 80 % of the errors on these sweeps

The first exchange is a term of its own, because a step pays for it once. Intervals are quantiles of
the errors on other tables (split conformal prediction: Vovk et al., 2005), so their coverage does
not depend on a model of the errors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq

Array = NDArray[np.float64]
#: Rates of one rank by number of ranks, for 34 families of published sweeps;
#: ``python -m benchmarks.foresight.curves`` writes it.
LADDERS = Path(__file__).with_name("ladders.json")
#: Quantiles of the errors between which 80 % of the true values lie.
QUANTILES = (0.1, 0.9)
#: Number of iterations of the fit by least absolute deviations.
ITERATIONS = 30
#: Deviations of ln(rate) below this have the same weight in the fit.
SMALL = 1e-3

#: Pairs (ranks, rate of one rank), the smallest size first.
Sizes: TypeAlias = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class RanksCurve:
    """The fit for sweeps with one measured size, or for sweeps with several.

    ``weights`` are the coefficients of ``_terms``. ``low`` and ``high`` are the ends of the 80 %
    interval of the errors in ln(rate), for one doubling of the ranks.
    """

    weights: Array
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Extrapolated:
    """The efficiency at a size relative to the smallest measured one, with its 80 % interval."""

    efficiency: float
    low: float
    high: float


def extrapolate(sizes: Sizes, ranks: int, per_node: int, leaving_out: str = "") -> Extrapolated:
    """Return the efficiency at ``ranks``, given the rates of smaller sizes.

    ``per_node`` is the number of ranks in a node. ``leaving_out`` is a family that is not used.
    """
    curve = curves(leaving_out)[len(sizes) > 1]
    doublings = _doublings(sizes, ranks)
    middle = np.log(sizes[-1][1] / sizes[0][1]) + _terms(sizes, ranks, per_node) @ curve.weights
    wide = np.sqrt(doublings)
    ends = middle, middle + curve.low * wide, middle + curve.high * wide
    efficiency, low, high = (float(np.exp(end)) for end in ends)
    return Extrapolated(efficiency=efficiency, low=low, high=high)


def _doublings(sizes: Sizes, ranks: int) -> float:
    """Return how often the ranks double from the largest measured size."""
    return float(np.log2(ranks / sizes[-1][0]))


def _terms(sizes: Sizes, ranks: int, per_node: int) -> Array:
    """Return the terms of the change of ln(rate) from the largest measured size.

    They are the continued slope of the measured sizes, the first exchange, the doublings inside a
    node, and those across nodes.
    """
    largest = sizes[-1][0]
    inside = np.log2(min(ranks, per_node) / min(largest, per_node))
    across = np.log2(max(ranks, per_node) / max(largest, per_node))
    slope = 0.0
    if len(sizes) > 1:
        numbers, rates = np.log2(np.array(sizes, float)).T
        slope = min(0.0, float(np.polyfit(numbers, rates * np.log(2), 1)[0]))
    return np.array([slope * _doublings(sizes, ranks), float(largest == 1), inside, across])


@cache
def ladders() -> Mapping[str, Sequence[tuple[int, Sizes]]]:
    """Return the published sweeps of each family, as pairs (ranks in a node, sizes)."""
    document = json.loads(LADDERS.read_text(encoding="utf-8"))
    families: dict[str, Sequence[tuple[int, Sizes]]] = document["families"]
    return families


@cache
def curves(leaving_out: str = "") -> tuple[RanksCurve, RanksCurve]:
    """Return the fits for sweeps with one measured size, and with several.

    A family counts with the square root of the number of its predictions, because these are not
    independent of each other.
    """
    rows: tuple[list[Array], list[Array]] = ([], [])
    for family, of_family in ladders().items():
        if family == leaving_out:
            continue
        made = [row for per_node, sizes in of_family for row in _rows(sizes, per_node)]
        weight = len(made) ** -0.5
        for several, row in made:
            rows[several].append(np.append(row, weight))
    return _fitted(np.array(rows[0])), _fitted(np.array(rows[1]))


def _rows(sizes: Sizes, per_node: int) -> list[tuple[bool, Array]]:
    """Return each prediction that a sweep allows: its terms, the true change, and doublings.

    The first item of a pair is True if several sizes are measured.
    """
    rows = []
    for count in range(1, len(sizes)):
        for ranks, rate in sizes[count:]:
            known = sizes[:count]
            change = np.log(rate / known[-1][1])
            terms = _terms(known, ranks, per_node)
            rows.append((count > 1, np.append(terms, [change, _doublings(known, ranks)])))
    return rows


def _fitted(rows: Array) -> RanksCurve:
    """Fit the terms by least absolute deviations, and take the quantiles of the errors.

    ``rows`` has shape (predictions, 7): four terms, change of ln(rate), doublings, weight.
    """
    terms, change, doublings, weight = rows[:, :4], rows[:, 4], rows[:, 5], rows[:, 6]
    scaled = np.sqrt(weight)
    for _ in range(ITERATIONS):
        weights: Array = lstsq(terms * scaled[:, None], change * scaled)[0]
        scaled = np.sqrt(weight / (np.abs(change - terms @ weights) + SMALL))
    errors = (change - terms @ weights) / np.sqrt(doublings)
    order = np.argsort(errors)
    reached = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, high = np.interp(QUANTILES, reached, errors[order])
    return RanksCurve(weights=weights, low=float(low), high=float(high))
