"""Choose a batch size by what fits in memory, the critical batch and the gradient-noise scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.samples import references
from harness.base.stats import t_quantile
from harness.cases import Plan
from harness.record import Purpose, RunRecord

#: Smallest number of batch sizes for a line and its error.
FEWEST_BATCHES = 3


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """The fitted critical batch in samples, and its interval; infinite if samples do not grow with
    it.

    ``least_samples`` are the samples to the loss in the limit of a small batch.
    """

    batch: float
    low: float
    high: float
    least_samples: float


def samples_to_loss(run: RunRecord, plan: Plan) -> dict[int, list[float]]:
    """Return the samples to the plan's loss, by global batch, of every launch that reached it."""
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

    The interval spans the fits without one batch size, and those with one launch for a batch size.
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
    # divided by ``needed``, so that errors are relative
    design = np.stack([1 / needed, batches / needed], 1)
    least, slope = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0]
    if least <= 0:
        return 0.0, 0.0
    return (float(least / slope), float(least)) if slope > 0 else (math.inf, float(least))


#: The search ends if the smallest micro-batch that does not fit exceeds the largest that does by at
#: most this share.
CLOSE = 1 / 16


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One micro-batch in a fresh world: its peak memory, its speed, and why it does not fit.

    ``peak_bytes`` is that of the rank with the largest peak; None if it ran out of memory.
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
    """A search that doubles the micro-batch until it does not fit, then halves the remaining
    interval.

    Micro-batches are multiples of ``unit``, and at most ``most``.
    """

    start: int
    unit: int = 1
    most: int | None = None

    def next(self, tried: Sequence[Attempt]) -> int | None:
        """Return the micro-batch to try next; None if the answer is known."""
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
    """Fit a line through the peaks of the micro-batches that fit; None for fewer than two."""
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
    """B_simple in samples and its 95 % interval; infinite if noise hides the gradient."""

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
    """Return B_simple, the ratio of the gradient's noise to its square; None without squares.

    The interval is a jackknife over the parts of the training.

    Args:
        squares: for each rank and each part of a training: the mean square of the rank's gradient,
            and of the mean gradient over ranks.
        small: samples of a rank's gradient.
        large: samples of the mean gradient.
    """
    if not squares or len({len(parts) for parts in squares}) != 1 or not squares[0]:
        return None
    # (parts, 2): averaged over ranks, which see different samples of one training
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
    """Return tr(Sigma) / |G|^2 from the mean squares at two batch sizes; infinite without a
    gradient.
    """
    of_small, of_large = squares
    gradient = (large * of_large - small * of_small) / (large - small)
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return float(noise / gradient) if gradient > 0 else math.inf


def by_batch(run: RunRecord, plan: Plan) -> dict[int, NoiseScale]:
    """Return the noise scale from each arm's reference, by global batch, if there is one."""
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
