"""The largest micro-batch that fits: what to try next, and what memory grows with. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The search ends where the smallest that does not fit is so little larger than the largest that
#: does.
CLOSE = 1 / 16


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One micro-batch in a fresh world: its peak, its speed, and why it does not fit.

    ``peak_bytes`` is the largest rank's, None where it ran out of memory.
    """

    micro: int
    peak_bytes: float | None
    throughput: float | None = None
    why: str = ""

    @property
    def fits(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class Search:
    """Doubles until something does not fit, then halves what lies between.

    ``unit``: micro-batches are multiples of it; ``most``: none is larger.
    """

    start: int
    unit: int = 1
    most: int | None = None

    def next(self, tried: Sequence[Attempt]) -> int | None:
        """The micro-batch to try next; None when the answer is known."""
        fits = max((attempt.micro for attempt in tried if attempt.fits), default=0)
        fails = min((attempt.micro for attempt in tried if not attempt.fits), default=None)
        if fails is None:
            wanted = self._whole(2 * fits) if fits else max(self.unit, self._whole(self.start))
            wanted = wanted if self.most is None else min(wanted, self._whole(self.most))
            return wanted if wanted > fits else None
        if fails - fits <= max(self.unit, fits * CLOSE):
            return None
        return min(max(self._whole((fits + fails) // 2), fits + self.unit), fails - self.unit)

    def _whole(self, micro: int) -> int:
        return micro // self.unit * self.unit


@dataclass(frozen=True)
class Grown:
    """Peak bytes: so many whatever the batch, and so many for each sample of a rank."""

    fixed: float
    per_sample: float

    def at(self, micro: int) -> float:
        return self.fixed + self.per_sample * micro


def grown(tried: Sequence[Attempt]) -> Grown | None:
    """A line through the peaks of what fitted; None for fewer than two."""
    peaks = {
        attempt.micro: attempt.peak_bytes for attempt in tried if attempt.peak_bytes is not None
    }
    if len(peaks) < 2:
        return None
    xs = list(peaks)
    ys = list(peaks.values())
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return Grown(mean_y - slope * mean_x, slope)
