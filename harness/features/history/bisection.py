"""Bisection under noise: which version is the first slow one, and how certain that is.

Versions are numbered from the good one (0) to the bad one (n - 1). What is measured are logarithms
of a version's step over the good one's, pair by pair. If version k is the first bad one, those
before it have mean 0, and those from it on one mean that nobody knows. With flat priors on k, that
mean and the logarithm of the noise, its posterior is in closed form (Box & Tiao 1973, 2.3):

    P(k | data)  ~  m_k^(-1/2)  RSS_k^(-(N - 1) / 2)

with N pairs in all, m_k of them of versions from k on, and RSS_k the squares around both means.
Each probe is the version that halves what is left of the posterior (Horstein 1963).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

#: Pairs that the bad version has before anything is probed, and at most: its mean has to be this
#: many standard errors from the good one's.
FIRST = 4
MOST_PAIRS = 24
APART = 4.0


@dataclass
class Bisection:
    """``error``: how often the answer may be wrong. ``pairs``: version -> logarithms of ratios."""

    num_versions: int
    error: float
    pairs: dict[int, list[float]] = field(default_factory=dict)

    def add(self, version: int, ratios: Sequence[float]) -> None:
        self.pairs.setdefault(version, []).extend(ratios)

    @property
    def posterior(self) -> np.ndarray:
        """The probability of each version to be the first bad one: entry i is of version i + 1."""
        versions = np.concatenate([np.full(len(x), v) for v, x in self.pairs.items()])
        values = np.concatenate([np.asarray(pair) for pair in self.pairs.values()])
        logs = []
        for first in range(1, self.num_versions):
            after = values[versions >= first]
            rss = (values[versions < first] ** 2).sum() + ((after - after.mean()) ** 2).sum()
            logs.append(-0.5 * np.log(len(after)) - 0.5 * (len(values) - 1) * np.log(rss + 1e-18))
        weights = np.exp(np.array(logs) - max(logs))
        return np.asarray(weights / weights.sum())

    @property
    def answer(self) -> tuple[int, float]:
        """The likeliest first bad version, and its probability."""
        posterior = self.posterior
        return int(posterior.argmax()) + 1, float(posterior.max())

    @property
    def apart(self) -> bool | None:
        """Whether the bad version differs from the good one; None while that is open."""
        ends = self.pairs.get(self.num_versions - 1, [])
        if len(ends) < FIRST:
            return None
        if abs(np.mean(ends)) > APART * np.std(ends, ddof=1) / np.sqrt(len(ends)):
            return True
        return False if len(ends) >= MOST_PAIRS else None

    @property
    def next(self) -> int | None:
        """The version to measure now; None when the answer is certain enough, or never will be."""
        last = self.num_versions - 1
        if self.apart is None:
            return last
        if not self.apart:
            return None
        sure = self.answer[1]
        if sure >= 1 - self.error:
            return None
        if last == 1:
            return last
        # A probe of version v tells those with first <= v from the others.
        return int(np.abs(np.cumsum(self.posterior)[:-1] - 0.5).argmin()) + 1

    def mean(self, version: int) -> tuple[float, int]:
        """By which share its steps are longer than the good one's, and over how many pairs."""
        pairs = self.pairs[version]
        return float(np.expm1(np.mean(pairs))), len(pairs)

    def plain(self) -> int:
        """How many launches plain bisection would take to err as seldom: both ends, then a version
        a time, each with as many pairs as tell it from half of the difference.
        """
        probes = math.ceil(math.log2(self.num_versions)) + 1
        last = self.pairs[self.num_versions - 1]
        step = abs(float(np.mean(last)))
        deviation = self._sd
        z = NormalDist().inv_cdf(1 - self.error / probes)
        return 2 * probes * max(1, math.ceil((2 * z * deviation / step) ** 2))

    @property
    def _sd(self) -> float:
        """The standard deviation of a pair around the mean of its version."""
        squares = sum(((np.array(pair) - np.mean(pair)) ** 2).sum() for pair in self.pairs.values())
        free = sum(len(pair) - 1 for pair in self.pairs.values())
        return float(np.sqrt(squares / max(free, 1)))
