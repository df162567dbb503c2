"""The judge: paired values and a rule to a status. Pure, and the same for every kind of bound.

PASS needs the whole confidence sequence on the right side of the bound, and on top of that what
``standard`` allows for slow launches that were not seen and for a trend that may go on. FAIL needs
the sequence on the wrong side. Everything else is INCONCLUSIVE. All of that stays valid however
often the judge looks.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.analysis.judging import sequential, standard
from harness.analysis.judging.standard import ALPHA
from harness.cases import BoundSource, Form, Statistic, Threshold
from harness.record import Reason, Status


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
    """A rule's answer about paired values.

    ``evidence`` is the e-value of a PASS or FAIL, ``missed`` the end of the bound that a FAIL
    missed, ``allowance`` the part of the bound by which a PASS has to clear it.
    """

    status: Status
    reason: Reason
    detail: str
    estimate: Estimate
    mde: float | None
    evidence: float | None = None
    missed: End | None = None
    allowance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BoundSide:
    """One end of a bound as "larger is better" on the scale that is averaged.

    ``margin`` is the allowance on that scale.
    """

    end: End
    values: tuple[float, ...]
    bound: float
    margin: float

    @property
    def _interval(self) -> tuple[float, float]:
        interval = sequential.t_sequence(self.values, ALPHA)
        assert interval.low is not None and interval.high is not None
        return interval.low, interval.high

    def held(self) -> bool:
        """Whether the interval holds the bound, with nothing allowed for."""
        return self._interval[0] >= self.bound

    def cleared(self, loss: float = 0.0, times: float = 1.0) -> bool:
        """Whether it holds the bound with so many times the allowance, and this further loss."""
        return self._interval[0] >= self.bound + self.margin * times + loss

    def missed(self) -> bool:
        early = len(self.values) < standard.BARE_FAIL
        return self._interval[1] < self.bound - (self.margin if early else 0.0)

    def evidence(self) -> float:
        return sequential.t_evidence(self.values, self.bound + self.margin)

    def evidence_against(self) -> float:
        return sequential.t_evidence([-v for v in self.values], -self.bound)


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


def judge(
    values: Sequence[float],
    rule: Threshold | None,
    form: Form,
    *,
    timed: bool = True,
    horizon: int = 0,
    halves: bool = True,
) -> Judged:
    """Judge paired values against a rule; without one they are RECORDED.

    Args:
        timed: whether launches can be slow in it; bytes and memory have no slow launches.
        horizon: how many pairs there may be in the end: a trend is taken to go on until then.
        halves: whether half of the launches may be slow and unseen, which was not asked for once.
    """
    e = estimate(values, form)
    allowance = standard.allowance(e.n) if timed else 0.0
    kept = standard.kept(e.n) if timed and halves else allowance
    mde = sequential.smallest_detectable(e.sd, e.n, ALPHA, allowance)

    def judged(status: Status, reason: Reason, detail: str, **more: Any) -> Judged:
        return Judged(
            status=status,
            reason=reason,
            detail=detail,
            estimate=e,
            mde=mde,
            allowance=allowance,
            **more,
        )

    if rule is None:
        return judged(Status.RECORDED, Reason.NO_RULE, "no rule applies")
    if e.n < standard.FIRST_LOOK:
        few = f"n = {e.n}: {standard.FIRST_LOOK} pairs of launches are judged at the earliest"
        return judged(Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, few)
    ends = sides(values, rule, form, allowance)
    strict = rule.statistic is Statistic.WORST
    below = [end for end in ends if end.missed()]
    if strict:
        below = [end for end in ends if min(end.values) < end.bound]
    if below:
        best = e.high if below[0].end is End.LOW else e.low
        detail = f"{best:.4g} at best, bound {rule.bound}"
        if strict:
            detail = f"the worst of {e.n} pairs misses {rule.bound}"
        # The mean of e-values is one; a maximum would not be.
        against = math.fsum(end.evidence_against() for end in ends) / len(ends)
        return judged(Status.FAIL, Reason.NOT_MET, detail, evidence=against, missed=below[0].end)
    if (still_open := _open(ends, rule, (allowance, kept), horizon)) is not None:
        return judged(Status.INCONCLUSIVE, *still_open)
    if rule.source in (BoundSource.CLAIMED, BoundSource.PROVISIONAL):
        detail = f"{rule.bound} is met, but a {rule.source} bound alone gives no PASS"
        return judged(Status.RECORDED, Reason.PROVISIONAL, detail)
    spare = f", with {kept:.1%} to spare for slow launches that were not seen"
    detail = f"{rule.bound} holds over the whole interval{spare if kept else ''}"
    evidence = min(end.evidence() for end in ends)
    return judged(Status.PASS, Reason.MET, detail, evidence=evidence)


def _open(
    ends: Sequence[BoundSide], rule: Threshold, spare: tuple[float, float], horizon: int
) -> tuple[Reason, str] | None:
    """Says why a bound that is not missed is not met either; None if it is met.

    ``spare``: the allowance, and what so few pairs have to clear the bound by.
    """
    n = len(ends[0].values)
    allowance, kept = spare
    if not all(end.held() for end in ends):
        return Reason.SPANS_BOUND, f"the interval contains the bound {rule.bound} after {n} pairs"
    if not all(end.cleared() for end in ends):
        return Reason.TOO_CLOSE, (
            f"too close: it clears {rule.bound}, but not by the {allowance:.1%} kept for slow"
            f" launches that {n} pairs may have missed"
        )
    if allowance and not all(end.cleared(times=kept / allowance) for end in ends):
        return Reason.TOO_CLOSE, (
            f"too close: it clears {rule.bound}, but not by the {kept:.1%} that a slow half of the"
            f" launches would take, and {n} pairs may have missed"
        )
    if not all(end.cleared(standard.trend_loss(end.values, horizon)) for end in ends):
        return Reason.TREND, f"{rule.bound} is met, but not if the trend of the {n} pairs goes on"
    return None


def sides(
    values: Sequence[float], rule: Threshold, form: Form, allowance: float
) -> list[BoundSide]:
    """Each end of the bound, on the scale of the interval: logs of ratios, plain values else."""
    up = list(values)
    ratio = form is not Form.ABSOLUTE
    ends = [(End.LOW, rule.at_least, 1), (End.HIGH, rule.at_most, -1)]
    if ratio:
        up = [math.log(v) for v in values]
        if form is Form.SAVED:  # at least 0.3 saved = a ratio of at most 0.7
            ends = [(end, None if b is None else 1 - b, -sign) for end, b, sign in ends]
        ends = [(end, None if b is None else _log(b), sign) for end, b, sign in ends]
    return [
        BoundSide(
            end=end,
            values=tuple(sign * v for v in up),
            bound=sign * b,
            margin=allowance * (1.0 if ratio else abs(b)),
        )
        for end, b, sign in ends
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
