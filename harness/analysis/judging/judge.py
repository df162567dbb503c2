"""The judge: from paired values and a threshold to a status. Pure functions."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from harness.base import stats
from harness.base.stats import Interval, interval, t_quantile
from harness.cases import BoundSource, Form, Statistic, Threshold
from harness.record import Reason, Status

#: Width of the mixture over effect sizes, in deviations. The wider, the sooner a large gap is
#: decided: 2 decides from 4 pairs on, and is 3 % wider than 1 after 8.
MIXTURE = 2.0


def t_sequence(values: Sequence[float], alpha: float) -> Interval:
    """The mean with an interval whose ends err with alpha / 2 each, at all looks together.

    ``low`` and ``high`` are None while the radius is infinite: with fewer than 2 values, or 2 to 3
    at the usual levels.
    """
    return interval(values, lambda sd, n: radius(sd, n, alpha))


def radius(sd: float, n: int, alpha: float) -> float | None:
    """Half-width of the t confidence sequence after n values; None while it is infinite.

    A = 1 + n c^2, K = (sqrt(A) / alpha)^(2/n): sd/sqrt(n) * sqrt((n-1)(K-1) / (1 - K/A)).
    """
    a = 1 + n * MIXTURE**2
    k = (math.sqrt(a) / alpha) ** (2 / n)
    if k >= a:
        return None
    return sd / math.sqrt(n) * math.sqrt((n - 1) * (k - 1) / (1 - k / a))


def t_evidence(values: Sequence[float], bound: float) -> float:
    """e-value against "the mean is at most ``bound``": 1 / alpha or more rejects it at alpha.

    The dual of ``t_sequence``: at least 1 / alpha exactly when the lower end of the interval of
    two-sided error alpha lies above the bound. Negate values and bound for the other side.
    """
    n = len(values)
    mean = fmean(values)
    a = 1 + n * MIXTURE**2
    if n < 2 or mean <= bound:
        return 1 / math.sqrt(a)  # the least over all means that the claim allows
    sd2 = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    ratio = a
    if sd2 > 0 and math.isfinite(bound):
        u = n * (mean - bound) ** 2 / sd2 / (n - 1)
        ratio = (1 + u) / (1 + u / a)
    return math.exp(n / 2 * math.log(ratio) - math.log(a) / 2)


def smallest_detectable(
    sd: float | None, n: int, alpha: float, allowance: float = 0.0, power: float = 0.9
) -> float | None:
    """Smallest relative change that n pairs with log-ratio deviation ``sd`` detect with ``power``.

    The sequence's half-width plus the allowance and the power's share, as a relative change; None
    when too few.
    """
    half_width = None if sd is None else radius(sd, n, alpha)
    if sd is None or half_width is None:
        return None
    return math.expm1(half_width + allowance + t_quantile(power, n - 1) * sd / math.sqrt(n))


def discoveries(evidence: Sequence[float], rate: float) -> frozenset[int]:
    """Which claims hold together at a false discovery rate (e-BH), by index.

    The k largest, for the largest k whose smallest e-value is at least m / (k rate).
    """
    order = sorted(range(len(evidence)), key=lambda i: -evidence[i])
    kept = 0
    for count, i in enumerate(order, 1):
        if evidence[i] * count * rate >= len(evidence):
            kept = count
    return frozenset(order[:kept])


#: Error of an interval, half of it at either end: 95 % for each one-sided statement.
ALPHA = 0.1
#: Pairs at the first look: with fewer, nothing is decided.
FIRST_LOOK = 4
#: Declared slow launches: at most this share of them, slower by at most this much.
UNSEEN_SHARE = 0.2
UNSEEN_SLOWDOWN = 0.05
#: Declared halves, as of two racks: half of the launches are slower by this much.
HALF_SLOWER = 0.1
#: From so many pairs on, a FAIL needs no allowance: a fresh set has to confirm it anyhow.
BARE_FAIL = 8
#: One-sided error at which pairs that fall by chance are taken for a trend.
TREND_ALPHA = 0.25


def unseen_share(n: int) -> float:
    """Slow launches that n pairs did not show are at most this share of all.

    With a larger share p, n pairs show none with a probability (1 - p)^n below 5 %.
    """
    return float(1 - (ALPHA / 2) ** (1 / n))


def rounding_allowance(n: int) -> float:
    """By how much the mean can lie below the mean of n pairs that did not show a slow launch.

    Relative; for the declared slow launches.
    """
    return UNSEEN_SLOWDOWN * min(UNSEEN_SHARE, unseen_share(n))


def kept_by_standard(n: int) -> float:
    """The margin by which n pairs must clear a bound: the allowance, and while they may all be of
    the faster half by chance (0.5^n above 5 %: 4 pairs), what the slower half takes of the mean.
    """
    hidden = 0.5**n > ALPHA / 2
    return max(rounding_allowance(n), HALF_SLOWER / 2 if hidden else 0.0)


def trend_loss(values: Sequence[float], horizon: int) -> float:
    """By how much the mean of ``horizon`` values lies below that of the first n if they go on
    falling as they do; 0 where they do not fall, or fall no more than by chance.
    """
    n = len(values)
    if horizon <= n or n < 3:
        return 0.0
    line = stats.slope(values, 2 * TREND_ALPHA)
    assert line.high is not None
    return -line.mean * (horizon - n) / 2 if line.high < 0 and math.isfinite(line.mean) else 0.0


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
        interval = t_sequence(self.values, ALPHA)
        assert interval.low is not None and interval.high is not None
        return interval.low, interval.high

    def held(self) -> bool:
        """Whether the interval holds the bound, with nothing allowed for."""
        return self._interval[0] >= self.bound

    def cleared(self, loss: float = 0.0, times: float = 1.0) -> bool:
        """Whether it holds the bound with so many times the allowance, and this further loss."""
        return self._interval[0] >= self.bound + self.margin * times + loss

    def missed(self) -> bool:
        early = len(self.values) < BARE_FAIL
        return self._interval[1] < self.bound - (self.margin if early else 0.0)

    def evidence(self) -> float:
        return t_evidence(self.values, self.bound + self.margin)

    def evidence_against(self) -> float:
        return t_evidence([-v for v in self.values], -self.bound)


def estimate(values: Sequence[float], form: Form) -> Estimate:
    """Geometric mean of ratios (or mean of absolute values) with its confidence sequence.

    For SAVED the value is 1 - ratio, so low and high change places.
    """
    if form is Form.ABSOLUTE:
        interval = t_sequence(values, ALPHA)
        relative = (
            None if interval.sd is None or not interval.mean else interval.sd / abs(interval.mean)
        )
        return Estimate(
            value=interval.mean, low=interval.low, high=interval.high, sd=relative, n=interval.n
        )
    interval = t_sequence([math.log(v) for v in values], ALPHA)
    low, high = (None if x is None else math.exp(x) for x in (interval.low, interval.high))
    value = math.exp(interval.mean)
    if form is Form.SAVED:
        low, high = (None if x is None else 1 - x for x in (high, low))
        value = 1 - value
    return Estimate(value=value, low=low, high=high, sd=interval.sd, n=interval.n)


def judge_values(
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
    allowance = rounding_allowance(e.n) if timed else 0.0
    kept = kept_by_standard(e.n) if timed and halves else allowance
    mde = smallest_detectable(e.sd, e.n, ALPHA, allowance)

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
    if e.n < FIRST_LOOK:
        few = f"n = {e.n}: {FIRST_LOOK} pairs of launches are judged at the earliest"
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
    if not all(end.cleared(trend_loss(end.values, horizon)) for end in ends):
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
