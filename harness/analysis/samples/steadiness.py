"""Calibration: how long to warm up, how many steps to time, and whether a window was steady."""

import functools
import itertools
import math
from collections.abc import Sequence
from statistics import median

from harness.base import stats
from harness.record import Steadiness

#: MSER works on means of this many steps.
BATCH = 5
#: Halves of a kept window that differ by less are steady enough, whatever their significance.
DRIFT = 0.01
#: Two-sided error of calling a steady window drifting. Small: one launch caps its contrast.
DRIFT_ALPHA = 1e-3
#: Deviations of an arm's drifts beyond which one of them is not its usual scatter.
OUTLYING = 5.0
#: Launch deviations below this are not believed when steps are traded for launches.
MIN_LAUNCH_SD = 0.007
#: A window grows to at most this many times what the recipe asks for, and only while its steps
#: take no longer than this many times what the launch costs to start.
MAX_GROWTH = 8
MAX_STEPPING = 4


def batch_means(steps: Sequence[float]) -> list[float]:
    """Means of 5 consecutive steps; steps that fill no batch are left out at the front."""
    first = len(steps) % BATCH
    return [math.fsum(steps[i : i + BATCH]) / BATCH for i in range(first, len(steps), BATCH)]


def mser5(steps: Sequence[float]) -> int:
    """How many steps to cut: the cut that gives the rest's mean the least standard error.

    White (1997), "An effective truncation heuristic for bias reduction in simulation output";
    at most half of the batches are cut.
    """
    means = batch_means(steps)
    num_means = len(means)
    if num_means < 4:
        return 0

    def error(cut: int) -> float:
        rest = means[cut:]
        center = math.fsum(rest) / len(rest)
        return math.fsum((m - center) ** 2 for m in rest) / len(rest) ** 2

    best = min(range(num_means // 2 + 1), key=error)
    return best * BATCH + len(steps) % BATCH if best else 0


def warm_up_steps(steps: Sequence[float]) -> int:
    """The steps that MSER-5 cuts off a pilot, as far as they really were slower than those after
    them.

    On noise alone MSER cuts too, and half of a pilot for the sake of its first steps: the shortest
    cut will do of which no slower part is left. Every launch pays for it.
    """
    cut = mser5(steps)
    settled = stats.t_interval(batch_means(steps[cut:]), 0.5) if cut else None
    if settled is None:
        return 0
    limit = max(DRIFT * settled.mean, 2 * (settled.sd or 0.0))
    boundaries: list[int] = [0, *range(len(steps) % BATCH, cut, BATCH)]
    for shorter in boundaries:
        remaining = steps[shorter:cut]
        if math.fsum(remaining) / len(remaining) - settled.mean <= limit:
            return shorter
    return cut


def steadiness(steps: Sequence[float]) -> Steadiness:
    """Whether a kept window of step times (s) shows no drift worth naming."""
    half = len(steps) // 2
    early = steps[:half]
    late = steps[len(steps) - half :]
    drift = math.log(math.fsum(late) / math.fsum(early)) if half else 0.0
    means = batch_means(steps)
    count = len(means) // 2
    t = None
    if count >= 2:
        a, b = (stats.t_interval(m, 0.5) for m in (means[:count], means[-count:]))
        assert a.sd is not None and b.sd is not None
        error = math.sqrt((a.sd**2 + b.sd**2) / count)
        t = (b.mean - a.mean) / error if error else 0.0
    limit = stats.t_quantile(1 - DRIFT_ALPHA / 2, 2 * count - 2) if count >= 2 else math.inf
    drifting = t is not None and abs(t) > limit and abs(drift) > DRIFT
    return Steadiness(drift=drift, t=t, mser=mser5(steps), steady=not drifting)


def outlier(windows: Sequence[Steadiness]) -> int | None:
    """Which launch of an arm drifts as none of its others do; None if they are all alike.

    On a noisy host every launch drifts one way or the other: that is scatter, and in the interval.
    A launch that is not steady stands out from its arm: by more than 5 of its deviations.
    """
    usual = median([abs(window.drift) for window in windows]) / 0.6745 if windows else 0.0
    for i, window in enumerate(windows):
        if not window.steady and abs(window.drift) > OUTLYING * usual:
            return i
    return None


def drifts(windows: Sequence[Steadiness]) -> bool:
    """Whether an arm drifts in all its launches alike, which no single one may show.

    Windows that are too short to tell (under 20 steps) say nothing here either.
    """
    values = [window.drift for window in windows if window.t is not None]
    if len(values) < 4:
        return False
    mean = stats.t_interval(values, DRIFT_ALPHA)
    assert mean.low is not None and mean.high is not None
    return abs(mean.mean) > DRIFT and (mean.low > 0 or mean.high < 0)


def long_run_variance(steps: Sequence[float]) -> float:
    """Variance of log step times that a mean over steps feels: inflated by lag-1 correlation."""
    logs = [math.log(step) for step in steps]
    num_logs = len(logs)
    mean = math.fsum(logs) / num_logs
    off = [v - mean for v in logs]
    variance = math.fsum(v * v for v in off) / (num_logs - 1)
    if variance == 0:
        return 0.0
    rho = math.fsum(a * b for a, b in itertools.pairwise(off)) / (variance * (num_logs - 1))
    rho = min(0.9, max(0.0, rho))
    return variance * (1 + rho) / (1 - rho)


def best_steps(steps: Sequence[float], launch_s: float, launch_sd: float, least: int) -> int:
    """Steps a launch should time: sqrt(cost_launch / cost_step * var_step / var_launch).

    Kalibera and Jones (ISMM 2013): beyond that, another launch buys more than another step.
    Never fewer than ``least``, which is also what cheap launches get: there are eight of each arm
    anyhow. ``launch_s`` is a launch's cost beside its steps.
    """
    step_s = math.fsum(steps) / len(steps)
    between = max(launch_sd, MIN_LAUNCH_SD) ** 2
    wanted = math.sqrt(launch_s / step_s * long_run_variance(steps) / between)
    most = min(MAX_GROWTH * least, MAX_STEPPING * launch_s / step_s)
    return max(least, math.ceil(min(wanted, most)))


def sd_of_launches(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Deviation between launches of one arm, from pairs of like launches' kept steps (A/A).

    Relative; what the steps' own scatter explains is taken off. None without a pair.
    """
    if not pairs:
        return None
    variances = [_variance_between(tuple(a), tuple(b)) for a, b in pairs]
    return math.sqrt(max(0.0, math.fsum(variances) / len(variances)))


@functools.lru_cache(maxsize=1 << 16)
def _variance_between(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The part of the difference between two launches that is left for launches as such. Each plan
    of a run asks for all pairs that were piloted before it.
    """
    d = math.log((math.fsum(a) / len(a)) / (math.fsum(b) / len(b)))
    scatter = long_run_variance(a) / len(a) + long_run_variance(b) / len(b)
    return (d * d - scatter) / 2
