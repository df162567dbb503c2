"""The critical batch: from how many samples to a loss each batch needed.

    E(B) = E_min (1 + B / B_crit)

(McCandlish et al., "An empirical model of large-batch training", 2018, section 2.3): far
below B_crit a larger batch costs no more samples, far above it no fewer steps. Least squares on
E / E_min; the interval is what leaving out any one batch, and any one launch, changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.cases import Plan
from harness.record import Purpose, RunRecord

#: Batches that a line and its error need.
FEWEST_BATCHES = 3


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """The fitted batch, samples, and between what it lies: infinite where nothing bends."""

    batch: float
    low: float
    high: float
    least_samples: float


def samples_to_loss(run: RunRecord, plan: Plan) -> dict[int, list[float]]:
    """Samples to the plan's loss, by global batch, of every launch that came there."""
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
    """The fit and its interval; None of fewer than three batches."""
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
    """(B_crit, E_min) by relative least squares; an infinite batch where samples do not grow."""
    batches = np.array([batch for batch, _ in points])
    needed = np.array([samples for _, samples in points])
    design = np.stack([1 / needed, batches / needed], 1)  # errors are relative ones
    least, slope = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0]
    if least <= 0:
        return 0.0, 0.0
    return (float(least / slope), float(least)) if slope > 0 else (math.inf, float(least))
