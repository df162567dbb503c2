"""Estimate how many more pairs would decide an open verdict if the scatter stays the same."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from harness.analysis.judging.judge import (
    ALPHA,
    BARE_FAIL,
    FIRST_LOOK,
    BoundSide,
    radius,
    rounding_allowance,
    sides,
)
from harness.analysis.judging.question import Question, Severity
from harness.cases import Threshold, metrics
from harness.record import Reason

#: Largest number of additional pairs that is worth proposing.
MOST_PAIRS = 100


#: Reasons under which more pairs can decide: the interval is too wide, or the possible effect of
#: background load reaches the bound.
HELPED = frozenset({
    Reason.SPANS_BOUND, Reason.TOO_CLOSE, Reason.TREND, Reason.TOO_FEW_PAIRS, Reason.NEIGHBOURS,
    Reason.NOISY_HOST,
})  # fmt: skip


#: Pairs of one block, which passes over the arms forward and then backward.
BLOCK = 2


def more_pairs(question: Question, rule: Threshold | None, reason: Reason) -> int | None:
    """Return how many more pairs would decide a verdict that is open for ``reason``.

    Return None if no number of pairs would, because a caveat remains or a bias spans the bound, or
    if it would take more than ``MOST_PAIRS``.
    """
    if (
        rule is None
        or reason not in HELPED
        or question.caveat(Severity.UNDECIDES)
        or not question.first
    ):
        return None
    n = len(question.first)
    if n < FIRST_LOOK:
        return FIRST_LOOK - n
    factors = [*(bias.shift for bias in question.caveats_of(Severity.BIASES)), 1.0]
    for total in range(n + BLOCK, n + MOST_PAIRS + 1, BLOCK):
        moved = [_moved(question, rule, factor, total) for factor in factors]
        if _passes(moved, total) or _fails(moved, total):
            return total - n
    return None


def _moved(question: Question, rule: Threshold, factor: float, total: int) -> Sequence[BoundSide]:
    """Return the sides of the bound with every pair multiplied by the factor of a bias.

    Their margin is the allowance after ``total`` pairs.
    """
    metric = metrics.metric(question.metric)
    allowance = rounding_allowance(total) if metric.of_time else 0.0
    return sides([v * factor for v in question.first], rule, metric.form, allowance)


def _radius(side: BoundSide, total: int) -> float:
    """Return the half-width of the interval after ``total`` pairs of the same scatter."""
    return radius(stdev(side.values), total, ALPHA) or math.inf


def _passes(moved: Sequence[Sequence[BoundSide]], total: int) -> bool:
    """Return whether the interval would meet all sides of the bound under every bias."""
    return all(
        fmean(side.values) - _radius(side, total) >= side.bound + side.margin
        for of_factor in moved
        for side in of_factor
    )


def _fails(moved: Sequence[Sequence[BoundSide]], total: int) -> bool:
    """Return whether the interval would miss the same side of the bound under every bias.

    With few pairs it has to miss the bound by the allowance.
    """
    early = total < BARE_FAIL
    return any(
        all(
            fmean(side.values) + _radius(side, total) < side.bound - side.margin * early
            for side in of_side
        )
        for of_side in zip(*moved, strict=True)
    )
