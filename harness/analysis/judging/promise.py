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


#: Reasons of open verdicts that more pairs can decide. The interval is too wide, or the possible
#: effect of other processes reaches the bound.
HELPED = frozenset({
    Reason.SPANS_BOUND, Reason.TOO_CLOSE, Reason.TREND, Reason.TOO_FEW_PAIRS, Reason.NEIGHBOURS,
    Reason.NOISY_HOST,
})  # fmt: skip


#: Number of pairs in one block, which launches the arms in order and then in reverse order.
BLOCK = 2


def more_pairs(question: Question, rule: Threshold | None, reason: Reason) -> int | None:
    """Return how many more pairs would decide a verdict that is open for ``reason``.

    Return None if more pairs cannot decide it, because a caveat would remain, or if more than
    ``MOST_PAIRS`` would be needed. If the bound lies between the values with and without a bias, no
    number of pairs is sufficient.
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
    """Return the ends of the bound with every value multiplied by the factor of a bias.

    The margin of each end is the allowance for ``total`` pairs.
    """
    metric = metrics.metric(question.metric)
    allowance = rounding_allowance(total) if metric.of_time else 0.0
    return sides([v * factor for v in question.first], rule, metric.form, allowance)


def _radius(side: BoundSide, total: int) -> float:
    """Return the half-width of the interval after ``total`` pairs with the present scatter."""
    return radius(stdev(side.values), total, ALPHA) or math.inf


def _passes(moved: Sequence[Sequence[BoundSide]], total: int) -> bool:
    """Return whether the interval would meet all ends of the bound under every bias."""
    return all(
        fmean(side.values) - _radius(side, total) >= side.bound + side.margin
        for of_factor in moved
        for side in of_factor
    )


def _fails(moved: Sequence[Sequence[BoundSide]], total: int) -> bool:
    """Return whether the interval would miss the same end of the bound under every bias.

    With fewer than ``BARE_FAIL`` pairs it has to miss the bound by more than the allowance.
    """
    early = total < BARE_FAIL
    return any(
        all(
            fmean(side.values) + _radius(side, total) < side.bound - side.margin * early
            for side in of_side
        )
        for of_side in zip(*moved, strict=True)
    )
