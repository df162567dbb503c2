"""The judge: paired values and a rule to a status. Pure, and the same for every kind of bound.

PASS needs two witnesses: the whole confidence sequence on the right side of the bound, which
speaks of the mean, and the sign e-value, which speaks of the median pair and assumes nothing of
the noise (so at least 7 pairs). FAIL needs the sequence alone; everything else is INCONCLUSIVE.
Both stay valid however often they are looked at.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.analysis.judging import sequential
from harness.record import Reason, Status
from harness.spec import Form, Source, Statistic, Threshold

#: Error of an interval, half of it at either end: 95 % for each one-sided statement.
ALPHA = 0.1
#: The sign e-value that a PASS asks for: wrong at most one time in twenty.
ENOUGH = 20.0


class End(StrEnum):
    """The two ends of a bound."""

    LOW = "at_least"
    HIGH = "at_most"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A metric's value with its interval, in the metric's unit; ``sd`` is relative."""

    value: float
    low: float | None
    high: float | None
    sd: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a rule made of paired values.

    ``evidence`` is the e-value of a PASS or FAIL, ``missed`` the end of the bound that a FAIL
    missed.
    """

    status: Status
    reason: Reason
    detail: str
    estimate: Estimate
    mde: float | None
    evidence: float | None = None
    missed: End | None = None


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One end of a bound as "larger is better" on the scale that is averaged."""

    values: tuple[float, ...]
    bound: float


def estimate(values: Sequence[float], form: Form) -> Estimate:
    """Geometric mean of ratios (or mean of absolute values) with its confidence sequence.

    For SAVED the value is 1 - ratio, so low and high change places.
    """
    if form is Form.ABSOLUTE:
        interval = sequential.t_sequence(values, ALPHA)
        relative = (
            None if interval.sd is None or not interval.mean else interval.sd / abs(interval.mean)
        )
        return Estimate(
            value=interval.mean, low=interval.low, high=interval.high, sd=relative, n=interval.n
        )
    interval = sequential.t_sequence([math.log(v) for v in values], ALPHA)
    low, high = (None if x is None else math.exp(x) for x in (interval.low, interval.high))
    value = math.exp(interval.mean)
    if form is Form.SAVED:
        low, high = (None if x is None else 1 - x for x in (high, low))
        value = 1 - value
    return Estimate(value=value, low=low, high=high, sd=interval.sd, n=interval.n)


def judge(values: Sequence[float], rule: Threshold | None, form: Form) -> Judged:
    """Judge paired values against a rule; without one they are RECORDED."""
    e = estimate(values, form)
    mde = sequential.smallest_detectable(e.sd, e.n, ALPHA)

    def judged(status: Status, reason: Reason, detail: str, evidence: float = 0.0) -> Judged:
        return Judged(
            status=status, reason=reason, detail=detail, estimate=e, mde=mde,
            evidence=evidence or None,
        )  # fmt: skip

    if rule is None:
        return judged(Status.RECORDED, Reason.NO_RULE, "no rule applies")
    if e.n == 1:
        return judged(Status.RECORDED, Reason.TOO_FEW_PAIRS, "n = 1: one pair is too few to judge")
    few = f"n = {e.n}: too few pairs of launches to judge"
    if e.low is None or e.high is None:
        return judged(Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, few)
    sides = _sides(values, rule, form)
    signs = min(sequential.sign_evidence(sum(v >= s.bound for v in s.values), e.n) for s in sides)
    means = min(sequential.t_evidence(s.values, s.bound) for s in sides)
    against = [sequential.t_evidence([-v for v in s.values], -s.bound) for s in sides]
    if rule.statistic is Statistic.WORST:
        met = all(min(s.values) >= s.bound for s in sides)
        missed = not met
    else:
        met = (rule.at_least is None or e.low >= rule.at_least) and (
            rule.at_most is None or e.high <= rule.at_most
        )
        missed = (rule.at_least is not None and e.high < rule.at_least) or (
            rule.at_most is not None and e.low > rule.at_most
        )
    if missed:
        if rule.statistic is Statistic.WORST:
            detail = f"the worst of {e.n} pairs misses {rule.bound}"
        else:
            best = e.high if rule.at_least is not None and e.value < rule.at_least else e.low
            detail = f"{best:.4g} at best, bound {rule.bound}"
        below = rule.at_least is not None and e.value < rule.at_least
        # The mean of e-values is one; a maximum would not be.
        failure = judged(Status.FAIL, Reason.NOT_MET, detail, math.fsum(against) / len(against))
        return replace(failure, missed=End.LOW if below else End.HIGH)
    if not met:
        detail = f"the interval contains the bound {rule.bound} after {e.n} pairs"
        return judged(Status.INCONCLUSIVE, Reason.SPANS_BOUND, detail)
    if sequential.sign_evidence(e.n, e.n) < ENOUGH:
        return judged(Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, few)
    if signs < ENOUGH:
        detail = f"the mean meets {rule.bound}, but too many of the {e.n} pairs miss it"
        return judged(Status.INCONCLUSIVE, Reason.PAIRS_SPLIT, detail)
    if rule.source in (Source.CLAIMED, Source.PROVISIONAL):
        detail = f"{rule.bound} is met, but a {rule.source} bound alone gives no PASS"
        return judged(Status.RECORDED, Reason.PROVISIONAL, detail)
    detail = f"{rule.bound} holds over the whole interval"
    return judged(Status.PASS, Reason.MET, detail, min(means, signs))


def _sides(values: Sequence[float], rule: Threshold, form: Form) -> list[_Side]:
    """Each end of the bound, on the scale of the interval: logs of ratios, plain values else."""
    up = list(values)
    ends = [(rule.at_least, 1), (rule.at_most, -1)]
    if form is not Form.ABSOLUTE:
        up = [math.log(v) for v in values]
        if form is Form.SAVED:  # at least 0.3 saved = a ratio of at most 0.7
            ends = [(None if b is None else 1 - b, -sign) for b, sign in ends]
        ends = [(None if b is None else _log(b), sign) for b, sign in ends]
    return [
        _Side(values=tuple(sign * v for v in up), bound=sign * b)
        for b, sign in ends
        if b is not None
    ]


def _log(bound: float) -> float:
    """A ratio's bound on the log scale; one that every ratio meets (or none) is infinite."""
    return math.log(bound) if bound > 0 else -math.inf


def worst(values: Sequence[float], rule: Threshold | None, form: Form) -> float | None:
    """The worst pair, in the metric's unit: the lowest, or the highest where less is better."""
    if not values:
        return None
    less_is_better = rule is not None and rule.at_least is None
    if form is Form.SAVED:
        return 1 - (min(values) if less_is_better else max(values))
    return max(values) if less_is_better else min(values)


def lag1(values: Sequence[float]) -> float | None:
    """Autocorrelation of consecutive pairs; None for fewer than 4, or without any spread."""
    n = len(values)
    if n < 4:
        return None
    mean = math.fsum(values) / n
    off = [v - mean for v in values]
    total = math.fsum(v * v for v in off)
    if total == 0:
        return None
    return math.fsum(a * b for a, b in itertools.pairwise(off)) / total
