"""Neighbours: what worlds that run at once do to each other, from an A/A of their baselines.

A baseline that its neighbours slow down makes every rung look better than it is. So a plan's probes
run its baselines both alone and beside others, and how much slower these may be is added to
what a PASS must leave to its bound. Rungs that are slowed down look worse: their FAIL is measured
again, one world at a time.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean, median

from harness.analysis.judging.pairs import like_launches_sd, timed
from harness.cases import Contrast, Plan
from harness.record import LaunchRecord, Purpose, RunRecord

#: One-sided 70 % of a normal: beside the judge's own interval, a wrong PASS stays under 1 %
#: (``tests/acceptance/rates.py``). And differences that no chance explains: 1 in 200.
UPPER = 0.52
CLEAR = 2.6
#: How often a baseline is probed alone, at most: the first time, and where nothing else is open.
PROBES = 4
#: Slower than this, and surely so, nothing of the plan runs side by side.
LEAST_SLOWDOWN = 0.005
#: What neighbours may take of a baseline that was never probed.
UNKNOWN = 0.5
#: What launches differ by where it is not known yet: the median of the world's clusters.
USUAL_SD = 0.005
#: A device is slow that is this much slower than the median of so many, and so many deviations.
SLOW = 0.01
FEWEST_PAIRS = 4
ODD = 4.0


def disturb(run: RunRecord, plan: Plan) -> bool:
    """Whether a baseline of the plan is clearly slower beside others than alone.

    Also where that cannot be told: only one of it fits, so that all its probes ran alone.
    """
    for case in _baselines(plan, plan.contrasts):
        probes = [launch for launch in run.by_case.get(case, ()) if launch.purpose is Purpose.PROBE]
        if len(probes) > 1 and not any(probe.slot for probe in probes):
            return True
        slowdown = _slowdown(run, case)
        if slowdown is not None and slowdown[0] > max(LEAST_SLOWDOWN, CLEAR * slowdown[1]):
            return True
    return False


def lost(run: RunRecord, plan: Plan, contrast: Contrast) -> float:
    """The share of its speed that a contrast's baseline may have lost to neighbours: the upper end
    of a one-sided 70 % interval, for as many of its launches as had any.
    """
    shares = [0.0]
    for name in contrast.baseline:
        launches = [launch for launch in timed(run, plan, None) if launch.arm == name]
        beside = sum(bool(launch.slot) for launch in launches)
        if not beside:
            continue
        slowdown = _slowdown(run, plan.arm(name).case.hash)
        if slowdown is None:  # nobody looked: nothing stands on it
            return UNKNOWN
        slower, error = slowdown
        shares.append(beside / len(launches) * -math.expm1(-max(0.0, slower + UPPER * error)))
    return max(shares)


@dataclass(frozen=True, kw_only=True)
class SlowDevice:
    """One that takes ``slower`` longer than the median of ``among`` that ran the same world."""

    node: int
    host: str
    device: int
    slower: float
    among: int

    @property
    def sentence(self) -> str:
        where = f"node {self.node} ({self.host}), device {self.device}"
        return f"{where}: {self.slower:.1%} slower than the median of {self.among}"


def slow_devices(run: RunRecord) -> list[SlowDevice]:
    """Devices that were clearly slower than the others when all of them ran the same world."""
    slots: dict[str, list[LaunchRecord]] = {}
    for launch in run.launches:
        if (
            launch.purpose is Purpose.PROBE
            and launch.slot
            and launch.throughput
            and len(launch.ranks) == 1
        ):
            slots.setdefault(launch.slot, []).append(launch)
    devices = []
    for launches in (same for same in slots.values() if len(same) >= FEWEST_PAIRS):
        speeds = [math.log(launch.throughput or 1.0) for launch in launches]
        usual = median(speeds)
        deviation = median(abs(s - usual) for s in speeds) / 0.6745
        for launch, speed in zip(launches, speeds, strict=True):
            if usual - speed > max(SLOW, ODD * deviation):
                devices.append(
                    SlowDevice(
                        node=launch.hosts[0],
                        host=launch.ranks[0].host,
                        device=launch.devices[0],
                        slower=-math.expm1(speed - usual),
                        among=len(launches),
                    )
                )
    return devices


def _baselines(plan: Plan, contrasts: Collection[Contrast]) -> set[str]:
    return {plan.arm(name).case.hash for contrast in contrasts for name in contrast.baseline}


def _slowdown(run: RunRecord, case: str) -> tuple[float, float] | None:
    """How much slower a case is beside others than alone, in logs, and the error of that: by its
    probes, or by its timed launches if these ran both ways. None if one kind is missing.
    """
    for purpose in (Purpose.PROBE, Purpose.TIMED):
        launches = [x for x in run.by_case.get(case, ()) if x.purpose is purpose and x.usable]
        alone = _speeds(launches, beside=False)
        beside = _speeds(launches, beside=True)
        if alone and beside:
            break
    else:
        return None
    deviation = like_launches_sd(run.launches) or USUAL_SD
    return fmean(alone) - fmean(beside), deviation * math.sqrt(1 / len(alone) + 1 / len(beside))


def _speeds(launches: Collection[LaunchRecord], *, beside: bool) -> list[float]:
    rates = [launch.throughput for launch in launches if bool(launch.slot) is beside]
    return [math.log(rate) for rate in rates if rate]
