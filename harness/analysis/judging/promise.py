"""How many more pairs would decide an open verdict, if they scatter as those so far."""

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

#: More pairs than this are no plan.
MOST_PAIRS = 100


#: Where pairs can decide: the interval is too wide, or load took more than there is room for.
HELPED = frozenset({
    Reason.SPANS_BOUND, Reason.TOO_CLOSE, Reason.TREND, Reason.TOO_FEW_PAIRS, Reason.NEIGHBOURS,
    Reason.NOISY_HOST,
})  # fmt: skip


#: A turn back and forth gives so many.
BLOCK = 2


def more_pairs(question: Question, rule: Threshold | None, reason: Reason) -> int | None:
    """None where no number of them would, since a doubt or a tilt spans the bound, or too many."""
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
    """The sides of the bound with every pair moved as far as a tilt can have moved it, and what is
    allowed for after so many pairs.
    """
    metric = metrics.metric(question.metric)
    allowance = rounding_allowance(total) if metric.of_time else 0.0
    return sides([v * factor for v in question.first], rule, metric.form, allowance)


def _radius(side: BoundSide, total: int) -> float:
    """The interval's half-width after so many pairs of the same scatter."""
    return radius(stdev(side.values), total, ALPHA) or math.inf


def _passes(moved: Sequence[Sequence[BoundSide]], total: int) -> bool:
    """Whether all sides would be cleared, wherever they may be."""
    return all(
        fmean(side.values) - _radius(side, total) >= side.bound + side.margin
        for of_factor in moved
        for side in of_factor
    )


def _fails(moved: Sequence[Sequence[BoundSide]], total: int) -> bool:
    """Whether one side would be missed, wherever it may be; by the allowance of few pairs."""
    early = total < BARE_FAIL
    return any(
        all(
            fmean(side.values) + _radius(side, total) < side.bound - side.margin * early
            for side in of_side
        )
        for of_side in zip(*moved, strict=True)
    )
