"""Determine the length of the warm-up and of the window, and whether a window was steady.

The window consists of the timed steps after the warm-up. It is steady if step times do not drift.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from statistics import median

from harness.base import stats
from harness.record import Steadiness

#: Number of steps in a batch; MSER-5 uses the means of batches.
BATCH = 5
#: If the halves of a kept window differ by less than this share, the window counts as steady, even
#: if the difference is significant.
DRIFT = 0.01
#: Two-sided probability that a steady window is reported as drifting by chance. It is small,
#: because a single drifting launch affects the verdict on its contrast.
DRIFT_ALPHA = 1e-3
#: A launch is an outlier if its drift exceeds this many times the usual drift of its arm.
OUTLYING = 5.0
#: Smallest relative deviation between launches that is assumed when the number of steps is chosen.
#: Smaller estimates are not trusted.
MIN_LAUNCH_SD = 0.007
#: A window has at most ``MAX_GROWTH`` times the recipe's steps. A window that is longer than the
#: recipe's takes at most ``MAX_STEPPING`` times as long as the rest of the launch.
MAX_GROWTH = 8
MAX_STEPPING = 4


def batch_means(steps: Sequence[float]) -> list[float]:
    """Return the means of batches of 5 consecutive steps.

    First steps that do not fill a batch are omitted.
    """
    first = len(steps) % BATCH
    return [math.fsum(steps[i : i + BATCH]) / BATCH for i in range(first, len(steps), BATCH)]


def mser5(steps: Sequence[float]) -> int:
    """Return how many steps to drop from the start by the rule MSER-5.

    The rule minimizes the standard error of the mean of the remaining steps, and drops at most half
    of the batches. See White (1997), "An effective truncation heuristic for bias reduction in
    simulation output".
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
    """Return how many first steps of a pilot to drop as warm-up.

    MSER-5 drops steps even if there is only noise, and may drop half of a pilot because of its
    first few steps. Every launch repeats the warm-up, so it should be short. This function
    therefore returns the smallest number for which the other steps that MSER-5 drops are not
    slower than the steps it keeps.
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
    """Return the drift of a kept window of step times (s), and whether the window is steady."""
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
    """Return the index of the launch that drifts more than its arm's other launches, or None.

    On a noisy host every launch drifts in one direction or the other. This scatter is included in
    the interval. An outlier is a launch that is not steady, and whose drift exceeds ``OUTLYING``
    times the usual drift of its arm.
    """
    usual = median([abs(window.drift) for window in windows]) / 0.6745 if windows else 0.0
    for i, window in enumerate(windows):
        if not window.steady and abs(window.drift) > OUTLYING * usual:
            return i
    return None


def drifts(windows: Sequence[Steadiness]) -> bool:
    """Return whether the mean drift of an arm's launches is large and significant.

    A single launch may not show this. Windows that are too short for a test (under 20 steps) are
    ignored.
    """
    values = [window.drift for window in windows if window.t is not None]
    if len(values) < 4:
        return False
    mean = stats.t_interval(values, DRIFT_ALPHA)
    assert mean.low is not None and mean.high is not None
    return abs(mean.mean) > DRIFT and (mean.low > 0 or mean.high < 0)


def long_run_variance(steps: Sequence[float]) -> float:
    """Return the long-run variance of the logarithms of step times.

    Divided by the number of steps, it is the variance of their mean. It is the sample variance,
    increased to account for the correlation of consecutive steps.
    """
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
    """Return the number of steps that a launch should time.

    It is sqrt(cost_launch / cost_step * var_step / var_launch). Beyond this number, another
    launch reduces the error more than further steps of the same cost (Kalibera and Jones, ISMM
    2013). The result is at least ``least``. Shorter launches would not pay for additional launches,
    because each arm has eight launches in any case. ``launch_s`` is the time in seconds that a
    launch takes in addition to its steps.
    """
    step_s = math.fsum(steps) / len(steps)
    between = max(launch_sd, MIN_LAUNCH_SD) ** 2
    wanted = math.sqrt(launch_s / step_s * long_run_variance(steps) / between)
    most = min(MAX_GROWTH * least, MAX_STEPPING * launch_s / step_s)
    return max(least, math.ceil(min(wanted, most)))


def sd_of_launches(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Return the relative standard deviation between launches of one arm, or None without a pair.

    Each pair holds the kept steps of two identical launches (A/A). The part that the scatter of the
    steps explains is subtracted.
    """
    if not pairs:
        return None
    variances = [_variance_between(tuple(a), tuple(b)) for a, b in pairs]
    return math.sqrt(max(0.0, math.fsum(variances) / len(variances)))


@functools.lru_cache(maxsize=1 << 16)
def _variance_between(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Return the variance between launches, estimated from the step times of two of them.

    It is half of the squared difference of their log means, minus the part that the scatter of the
    steps explains. The result is cached, because each plan of a run uses all pairs of pilots that
    were measured before it.
    """
    d = math.log((math.fsum(a) / len(a)) / (math.fsum(b) / len(b)))
    scatter = long_run_variance(a) / len(a) + long_run_variance(b) / len(b)
    return (d * d - scatter) / 2
