"""The judge: pure functions that turn paired values and a threshold into a status."""

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

#: Width of the mixture over effect sizes, in standard deviations. With a wider mixture, fewer pairs
#: decide a large difference. With a width of 2, 4 pairs can decide, and the interval after 8 pairs
#: is 3 % wider than with a width of 1.
MIXTURE = 2.0


def t_sequence(values: Sequence[float], alpha: float, spread: float = 1.0) -> Interval:
    """Return the mean with its t confidence sequence, whose half-width is multiplied by ``spread``.

    This interval stays valid if it is computed again after each new value. Each end errs with
    probability ``alpha`` / 2. ``low`` and ``high`` are None while the half-width is infinite. At
    the usual levels it is infinite for fewer than 4 values.
    """
    return interval(values, lambda sd, n: radius(sd * spread, n, alpha))


def radius(sd: float, n: int, alpha: float) -> float | None:
    """Return the half-width of the t confidence sequence after n values; None while it is infinite.

    A = 1 + n c^2, K = (sqrt(A) / alpha)^(2/n): sd/sqrt(n) * sqrt((n-1)(K-1) / (1 - K/A)).
    """
    a = 1 + n * MIXTURE**2
    k = (math.sqrt(a) / alpha) ** (2 / n)
    if k >= a:
        return None
    return sd / math.sqrt(n) * math.sqrt((n - 1) * (k - 1) / (1 - k / a))


def t_evidence(values: Sequence[float], bound: float, spread: float = 1.0) -> float:
    """Return the e-value against the hypothesis "the mean is at most ``bound``".

    A value of 1 / alpha or more rejects the hypothesis at level alpha. This is the dual of
    ``t_sequence``: the e-value is at least 1 / alpha if and only if the lower end of its interval
    for ``alpha`` lies above the bound. Negate the values and the bound to test the opposite
    hypothesis.
    """
    n = len(values)
    mean = fmean(values)
    a = 1 + n * MIXTURE**2
    if n < 2 or mean <= bound:
        return 1 / math.sqrt(a)  # the least e-value over all means that the hypothesis allows
    sd2 = spread**2 * math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    ratio = a
    if sd2 > 0 and math.isfinite(bound):
        u = n * (mean - bound) ** 2 / sd2 / (n - 1)
        ratio = (1 + u) / (1 + u / a)
    return math.exp(n / 2 * math.log(ratio) - math.log(a) / 2)


def smallest_detectable(
    sd: float | None, n: int, alpha: float, allowance: float = 0.0, power: float = 0.9
) -> float | None:
    """Return the smallest relative change that n pairs detect with probability ``power``.

    ``sd`` is the standard deviation of the pairs' log-ratios. On the logarithmic scale, the change
    is the half-width of the confidence sequence plus ``allowance`` plus the t quantile of ``power``
    times the standard error. Return None if the half-width is infinite.
    """
    half_width = None if sd is None else radius(sd, n, alpha)
    if sd is None or half_width is None:
        return None
    return math.expm1(half_width + allowance + t_quantile(power, n - 1) * sd / math.sqrt(n))


def discoveries(evidence: Sequence[float], rate: float) -> frozenset[int]:
    """Return the indices of the claims that are accepted at a false discovery rate (e-BH).

    The k claims with the largest of the m e-values are accepted. k is the largest number for which
    each of these e-values is at least m / (k rate).
    """
    order = sorted(range(len(evidence)), key=lambda i: -evidence[i])
    kept = 0
    for count, i in enumerate(order, 1):
        if evidence[i] * count * rate >= len(evidence):
            kept = count
    return frozenset(order[:kept])


#: Error probability of an interval. Half of it is at each end, so a one-sided statement has a
#: confidence of 95 %.
ALPHA = 0.1
#: Number of pairs at which the judge first decides; with fewer pairs a verdict is INCONCLUSIVE.
FIRST_LOOK = 4
#: Largest share of slow launches that the judge assumes if the measured pairs contain none.
UNSEEN_SHARE = 0.2
#: Relative slowdown that the judge assumes for a slow launch if the measured pairs contain none.
UNSEEN_SLOWDOWN = 0.05
#: Relative slowdown of the slower half of the launches, if there are two groups of launches. For
#: example, half of them may run on a second rack.
HALF_SLOWER = 0.1
#: With this many pairs or more, a FAIL needs no allowance, because fresh launches have to confirm
#: it.
BARE_FAIL = 8
#: One-sided error probability at which falling values count as a trend.
TREND_ALPHA = 0.25


#: The correlation between pairs is estimated from this number of pairs (4 blocks) on.
CORRELATED_LOOK = 8
#: The lag-1 autocorrelation of n pairs is too small by about this number divided by n, because it
#: is computed with their own mean: (1 + 4 r) / n for a correlation r, here 0.5 (Marriott and Pope,
#: Biometrika 41, 1954).
LAG_BIAS = 3.0
#: A correlation up to this value is not distinguished from none.
UNCORRELATED = 0.3
#: Largest correlation that is assumed.
MOST_CORRELATED = 0.9


def correlation_spread(values: Sequence[float]) -> float:
    """Return the factor by which correlation between pairs widens the interval of their mean.

    For values whose correlation decreases geometrically (AR(1)), the variance of a mean is larger
    by (1 + r) / (1 - r), where r is the correlation of consecutive values.
    """
    lag = lag1(values)
    if lag is None or len(values) < CORRELATED_LOOK:
        return 1.0
    r = min(lag + LAG_BIAS / len(values), MOST_CORRELATED)
    return math.sqrt((1 + r) / (1 - r)) if r > UNCORRELATED else 1.0


def unseen_share(n: int) -> float:
    """Return the largest share of slow launches that can be missed by n pairs.

    If the share p were larger, the probability (1 - p)^n that n pairs contain no slow launch would
    be below 5 %.
    """
    return float(1 - (ALPHA / 2) ** (1 / n))


def rounding_allowance(n: int) -> float:
    """Return by how much slow launches may lower the true mean if n pairs contain none of them.

    The amount is relative to the mean. ``UNSEEN_SHARE`` limits the share of slow launches, and
    ``UNSEEN_SLOWDOWN`` is their relative slowdown.
    """
    return UNSEEN_SLOWDOWN * min(UNSEEN_SHARE, unseen_share(n))


def kept_by_standard(n: int) -> float:
    """Return the relative margin by which the interval of n pairs must clear a bound.

    The margin is ``rounding_allowance``. With 4 pairs or fewer, all of them can belong to the
    faster half of the launches by chance (0.5^n is above 5 %). The margin is then at least the
    amount by which the slower half lowers the mean.
    """
    hidden = 0.5**n > ALPHA / 2
    return max(rounding_allowance(n), HALF_SLOWER / 2 if hidden else 0.0)


def trend_loss(values: Sequence[float], horizon: int) -> float:
    """Return by how much a falling trend of the values would lower their mean.

    It is the mean of the n given values minus the mean of ``horizon`` values. The values after the
    n-th are assumed to lie on the line that is fitted to the first n. Return 0 if the values do not
    fall, or if chance explains the fall.
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
    """A metric's value with its interval, in the metric's unit; ``sd`` is a relative deviation."""

    value: float
    low: float | None
    high: float | None
    sd: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The result of judging paired values by a threshold.

    ``mde`` is the smallest relative change that these pairs detect. ``evidence`` is the e-value of
    a PASS or FAIL. ``missed`` is the end of the bound that was missed in a FAIL. ``allowance`` is
    the relative margin by which a PASS has to clear the bound. ``spread`` is the factor by which
    correlation between pairs widened the interval.
    """

    status: Status
    reason: Reason
    detail: str
    estimate: Estimate
    mde: float | None
    evidence: float | None = None
    missed: End | None = None
    allowance: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True, kw_only=True)
class BoundSide:
    """One end of a bound, with the measured values; all are transformed so that larger is better.

    ``values``, ``bound`` and ``margin`` are on the scale on which values are averaged, which is
    logarithmic for ratios. ``margin`` is the allowance on that scale. ``spread`` is the factor by
    which correlation widens the interval.
    """

    end: End
    values: tuple[float, ...]
    bound: float
    margin: float
    spread: float

    @property
    def _interval(self) -> tuple[float, float]:
        interval = t_sequence(self.values, ALPHA, self.spread)
        assert interval.low is not None and interval.high is not None
        return interval.low, interval.high

    def held(self) -> bool:
        """Return whether the whole interval meets the bound, without any allowance."""
        return self._interval[0] >= self.bound

    def cleared(self, loss: float = 0.0, times: float = 1.0) -> bool:
        """Return whether the interval also meets a stricter bound.

        The stricter bound is the bound plus ``times`` the margin plus ``loss``. ``loss`` is the
        amount by which a trend may lower the mean in further pairs. ``times`` is the factor by
        which few pairs increase the margin.
        """
        return self._interval[0] >= self.bound + self.margin * times + loss

    def missed(self) -> bool:
        early = len(self.values) < BARE_FAIL
        return self._interval[1] < self.bound - (self.margin if early else 0.0)

    def evidence(self) -> float:
        return t_evidence(self.values, self.bound + self.margin, self.spread)

    def evidence_against(self) -> float:
        return t_evidence([-v for v in self.values], -self.bound, self.spread)


def estimate(values: Sequence[float], form: Form, spread: float = 1.0) -> Estimate:
    """Return the geometric mean of ratios, or the mean of absolute values, with its interval.

    ``spread`` is the factor by which correlation between the values widens the interval.
    For SAVED the value is 1 - ratio, so ``low`` and ``high`` are swapped.
    """
    if form is Form.ABSOLUTE:
        interval = t_sequence(values, ALPHA, spread)
        relative = (
            None if interval.sd is None or not interval.mean else interval.sd / abs(interval.mean)
        )
        return Estimate(
            value=interval.mean, low=interval.low, high=interval.high, sd=relative, n=interval.n
        )
    interval = t_sequence([math.log(v) for v in values], ALPHA, spread)
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
    correlated: bool = True,
) -> Judged:
    """Judge paired values against a threshold; without a threshold they are RECORDED.

    Args:
        timed: whether slow launches change the metric; bytes and memory do not depend on speed.
        horizon: the largest possible number of pairs, up to which a trend is extrapolated.
        halves: whether to allow for a slower half of the launches that the pairs may have missed.
            Records with an older schema are judged without this allowance.
        correlated: whether to allow for correlation between pairs. Records with an older schema
            are judged without it.
    """
    spread = _spread(values, form) if timed and correlated else 1.0
    e = estimate(values, form, spread)
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
            spread=spread,
            **more,
        )

    if rule is None:
        return judged(Status.RECORDED, Reason.NO_RULE, "no threshold applies")
    if e.n < FIRST_LOOK:
        few = f"n = {e.n}, and a verdict needs at least {FIRST_LOOK}"
        return judged(Status.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, few)
    ends = sides(values, rule, form, allowance, spread)
    if (missed := _missed(ends, rule)) is not None:
        best = e.high if missed is End.LOW else e.low
        detail = f"{best:.4g} at best, bound {rule.bound}"
        if rule.statistic is Statistic.WORST:
            detail = f"the worst of {e.n} pairs misses {rule.bound}"
        # The mean of e-values is an e-value; their maximum is not.
        against = math.fsum(end.evidence_against() for end in ends) / len(ends)
        return judged(Status.FAIL, Reason.NOT_MET, detail, evidence=against, missed=missed)
    if (still_open := _open(ends, rule, (allowance, kept), horizon)) is not None:
        return judged(Status.INCONCLUSIVE, *still_open)
    if rule.source in (BoundSource.CLAIMED, BoundSource.PROVISIONAL):
        detail = f"{rule.bound} is met, but a {rule.source} bound alone gives no PASS"
        return judged(Status.RECORDED, Reason.PROVISIONAL, detail)
    spare = f", with a margin of {kept:.1%} for slow launches that were not seen"
    detail = f"the whole interval meets {rule.bound}{spare if kept else ''}"
    evidence = min(end.evidence() for end in ends)
    return judged(Status.PASS, Reason.MET, detail, evidence=evidence)


def _spread(values: Sequence[float], form: Form) -> float:
    """Return the ``correlation_spread`` of values, on the scale on which they are averaged."""
    return correlation_spread(values if form is Form.ABSOLUTE else [math.log(v) for v in values])


def _missed(ends: Sequence[BoundSide], rule: Threshold) -> End | None:
    """Return the first end of a bound that is missed, or None.

    A threshold on the worst pair is missed if a single pair misses it.
    """
    if rule.statistic is Statistic.WORST:
        missed = (end.end for end in ends if min(end.values) < end.bound)
    else:
        missed = (end.end for end in ends if end.missed())
    return next(missed, None)


def _open(
    ends: Sequence[BoundSide], rule: Threshold, spare: tuple[float, float], horizon: int
) -> tuple[Reason, str] | None:
    """Return why the judge cannot confirm that a bound is met, or None if it is met.

    The caller has found that the bound is not missed. ``spare`` holds the allowance and the larger
    margin that few pairs need (``kept_by_standard``).
    """
    n = len(ends[0].values)
    allowance, kept = spare
    if not all(end.held() for end in ends):
        return Reason.SPANS_BOUND, f"the interval contains the bound {rule.bound} after {n} pairs"
    if not all(end.cleared() for end in ends):
        return Reason.TOO_CLOSE, (
            f"too close: the interval meets {rule.bound}, but without the margin of"
            f" {allowance:.1%} for slow launches that {n} pairs may not have shown"
        )
    if allowance and not all(end.cleared(times=kept / allowance) for end in ends):
        return Reason.TOO_CLOSE, (
            f"too close: the interval meets {rule.bound}, but without the margin of {kept:.1%} for"
            f" a slow half of the launches that {n} pairs may not have shown"
        )
    if not all(end.cleared(trend_loss(end.values, horizon)) for end in ends):
        return Reason.TREND, f"{rule.bound} is met, but not if the trend of {n} pairs continues"
    return None


def sides(
    values: Sequence[float], rule: Threshold, form: Form, allowance: float, spread: float = 1.0
) -> list[BoundSide]:
    """Return each end of the bound on the scale on which values are averaged.

    Ratios are on a logarithmic scale, and absolute values are unchanged.
    """
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
            spread=spread,
        )
        for end, b, sign in ends
        if b is not None
    ]


def _log(bound: float) -> float:
    """Return the logarithm of a ratio's bound; a bound of 0 or less becomes minus infinity."""
    return math.log(bound) if bound > 0 else -math.inf


def worst(values: Sequence[float], rule: Threshold | None, form: Form) -> float | None:
    """Return the value of the worst pair, in the metric's unit.

    It is the lowest value, or the highest if less is better for the threshold.
    """
    if not values:
        return None
    less_is_better = rule is not None and rule.at_least is None
    if form is Form.SAVED:
        return 1 - (min(values) if less_is_better else max(values))
    return max(values) if less_is_better else min(values)


def lag1(values: Sequence[float]) -> float | None:
    """Return the autocorrelation of consecutive pairs.

    Return None for fewer than 4 pairs, or if all values are equal.
    """
    n = len(values)
    if n < 4:
        return None
    mean = math.fsum(values) / n
    off = [v - mean for v in values]
    total = math.fsum(v * v for v in off)
    if total == 0:
        return None
    return math.fsum(a * b for a, b in itertools.pairwise(off)) / total
