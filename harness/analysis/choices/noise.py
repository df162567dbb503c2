"""The gradient-noise scale: how large a batch pays, from the gradients of two batch sizes.

The square of a gradient over B samples is |G|^2 + tr(Sigma) / B in the mean, so that two sizes give
both (McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1). The two
are here a rank's own gradient and the mean of all ranks', of each step of a reference. Their ratio
B_simple = tr(Sigma) / |G|^2 (equation 2.9) is near the critical batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.samples import references
from harness.base.stats import t_quantile
from harness.cases import Plan
from harness.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """B_simple in samples and its 95 % interval; infinite where noise hides the gradient."""

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
    """B_simple; None without squares.

    Args:
        squares: of each rank, part by part of a training: mean square of its own gradient, and of
            the mean gradient.
        small: samples of a rank's gradient.
        large: samples of the mean gradient.
    """
    if not squares or len({len(parts) for parts in squares}) != 1 or not squares[0]:
        return None
    parts = np.array(squares).mean(0)  # (parts, 2): ranks see other samples of the same training
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
    """tr(Sigma) / |G|^2 of the mean squares at two batches; infinite without a gradient."""
    of_small, of_large = squares
    gradient = (large * of_large - small * of_small) / (large - small)
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return float(noise / gradient) if gradient > 0 else math.inf


def by_batch(run: RunRecord, plan: Plan) -> dict[int, NoiseScale]:
    """The noise scale of each arm's reference, by global batch, where there is one."""
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
