"""Choose a batch size by the memory it needs, the critical batch and the gradient-noise scale.

The critical batch B_crit is the batch size at which a training needs twice as many samples to reach
a loss as with a very small batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.samples import references
from harness.base.stats import t_quantile
from harness.cases import Plan
from harness.record import Purpose, RunRecord

#: Smallest number of batch sizes from which the critical batch and its error are fitted.
FEWEST_BATCHES = 3


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """The fitted critical batch in samples, with its interval.

    The critical batch is infinite if larger batches do not need more samples. ``least_samples`` is
    the number of samples that a very small batch needs to reach the loss.
    """

    batch: float
    low: float
    high: float
    least_samples: float


def samples_to_loss(run: RunRecord, plan: Plan) -> dict[int, list[float]]:
    """Return the number of samples that each launch needed to reach the plan's loss.

    The numbers are grouped by global batch. Launches that did not reach the loss are omitted.
    """
    by_batch: dict[int, list[float]] = {}
    for arm in plan.arms:
        described = run.described.get(arm.case.hash)
        if described is None or described.expected is None:
            continue
        reached = [
            float(launch.reached.samples)
            for launch in run.launches
            if launch.plan == plan.hash and launch.arm == arm.name
            if launch.purpose is Purpose.TIMED and launch.usable and launch.reached is not None
        ]
        if reached:
            by_batch[described.expected.global_batch] = reached
    return by_batch


def critical_batch(samples: Mapping[int, Sequence[float]]) -> CriticalBatch | None:
    """Fit the critical batch and its interval; return None for fewer than three batch sizes.

    The interval contains the results of further fits. Some omit one batch size, and others use only
    a single launch for one batch size.
    """
    if len(samples) < FEWEST_BATCHES:
        return None
    points = [(float(batch), float(np.mean(needed))) for batch, needed in samples.items()]
    batch, least = _line(points)
    others = [_line(points[:i] + points[i + 1 :])[0] for i in range(len(points))]
    for i, (size, needed) in enumerate(zip(samples, samples.values(), strict=True)):
        for value in needed:
            others.append(_line([*points[:i], (float(size), value), *points[i + 1 :]])[0])
    return CriticalBatch(
        batch=batch, low=min(batch, *others), high=max(batch, *others), least_samples=least
    )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit samples = E_min * (1 + batch / B_crit) by relative least squares; return (B_crit, E_min).

    B_crit is infinite if samples do not grow with the batch.
    """
    batches = np.array([batch for batch, _ in points])
    needed = np.array([samples for _, samples in points])
    # Both sides are divided by ``needed``, because relative errors are minimized.
    design = np.stack([1 / needed, batches / needed], 1)
    least, slope = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0]
    if least <= 0:
        return 0.0, 0.0
    return (float(least / slope), float(least)) if slope > 0 else (math.inf, float(least))


#: The search ends if the smallest micro-batch that does not fit exceeds the largest one that fits
#: by at most this share.
CLOSE = 1 / 16


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of training with one micro-batch in a fresh world.

    ``micro`` is the micro-batch in samples. ``peak_bytes`` is the largest peak memory of any rank;
    None if a rank ran out of memory. ``throughput`` is in samples/s. ``why`` is the reason if the
    micro-batch does not fit (empty if it fits).
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
    """A search for the largest micro-batch that fits.

    It doubles the micro-batch until one does not fit, and then halves the remaining interval.
    Micro-batches are multiples of ``unit``, and at most ``most``. ``start`` is tried first.
    """

    start: int
    unit: int = 1
    most: int | None = None

    def next(self, tried: Sequence[Attempt]) -> int | None:
        """Return the micro-batch to try next, or None if the search has ended."""
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
    """A linear model of peak bytes: a fixed part, and a part for each sample of a rank."""

    fixed: float
    per_sample: float

    def at(self, micro: int) -> float:
        return self.fixed + self.per_sample * micro


def grown(tried: Sequence[Attempt]) -> Grown | None:
    """Fit a line through the peaks of micro-batches that fit; return None for fewer than two."""
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


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient-noise scale B_simple in samples, with its 95 % interval.

    Values are infinite if the noise is too large to measure the gradient.
    """

    batch: float
    low: float
    high: float

    def __str__(self) -> str:
        high = "any" if math.isinf(self.high) else f"{self.high:.0f}"
        batch = "any" if math.isinf(self.batch) else f"{self.batch:.0f}"
        return f"{batch} [{self.low:.0f}, {high}]"


def noise_scale(
    squares: Sequence[Sequence[tuple[float, float]]], small: float, large: float
) -> NoiseScale | None:
    """Return B_simple, the variance of the gradient of a sample divided by the squared gradient.

    The interval is a jackknife over the parts of the training. Return None if ``squares`` is empty.

    Args:
        squares: two numbers for each rank and each part of a training: the mean square of the
            rank's gradient, and the mean square of the gradient averaged over ranks.
        small: the number of samples of a rank's gradient.
        large: the number of samples of the averaged gradient.
    """
    if not squares or len({len(parts) for parts in squares}) != 1 or not squares[0]:
        return None
    # shape (parts, 2), averaged over ranks, which train on different samples
    parts = np.array(squares).mean(0)
    count = len(parts)
    whole = _ratio(parts.mean(0), small, large)
    left_out = [_ratio(np.delete(parts, i, 0).mean(0), small, large) for i in range(count)]
    if not all(map(math.isfinite, (whole, *left_out))) or min(whole, *left_out) <= 0:
        return NoiseScale(batch=whole, low=max(0.0, min(whole, *left_out)), high=math.inf)
    logs = np.log(left_out)
    error = math.sqrt((count - 1) / count * float(((logs - logs.mean()) ** 2).sum()))
    factor = math.exp(t_quantile(0.975, count - 1) * error)
    return NoiseScale(batch=whole, low=whole / factor, high=whole * factor)


def _ratio(squares: np.ndarray, small: float, large: float) -> float:
    """Return tr(Sigma) / |G|^2 from the mean squares of gradients at two batch sizes.

    It is infinite if the estimate of |G|^2 is not positive.
    """
    of_small, of_large = squares
    gradient = (large * of_large - small * of_small) / (large - small)
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return float(noise / gradient) if gradient > 0 else math.inf


def by_batch(run: RunRecord, plan: Plan) -> dict[int, NoiseScale]:
    """Return the noise scales by global batch, for all arms that have a reference training."""
    out: dict[int, NoiseScale] = {}
    for arm in plan.arms:
        described = run.described.get(arm.case.hash)
        if described is None or described.expected is None:
            continue
        launch = references.launch_of(run.references, run.described, arm.case.hash)
        if launch is None or arm.case.world_size < 2:
            continue
        batch = described.expected.global_batch
        squares = [rank.squares for rank in launch.ranks]
        scale = noise_scale(squares, batch / arm.case.world_size, batch)
        if scale is not None:
            out[batch] = scale
    return out
