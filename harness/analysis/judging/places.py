"""Places: whether launches of an arm were drawn from all places there are, or kept their own.

A slow node or device that stays with an arm is no noise: no number of pairs averages it away. Where
every launch draws its place, what is left of it is simulated by ``tests/acceptance/rates.py``.
"""

from collections.abc import Sequence

from harness.analysis.judging.evidence import ContrastData
from harness.cases import CaseSpec, Device, metrics
from harness.record import LaunchRecord


def kept(evidence: ContrastData) -> str:
    """Which arm had one place in all of its launches, of several that there are; else empty.

    Cores of one node are no places: the kernel moves ranks from one to the other.
    """
    if not metrics.metric(evidence.contrast.metric).of_time:
        return ""
    for arm in sorted(evidence.arms, key=lambda arm: arm.name):
        if where := _only(arm.case, evidence.timed_of([arm.name]), evidence.run.settings.nodes):
            return f"{arm.name} ran {where}: its places were not drawn"
    return ""


def _only(case: CaseSpec, launches: Sequence[LaunchRecord], room: Sequence[int]) -> str:
    """The only place of these launches, where there are others."""
    if len(launches) < 2:
        return ""
    if len(case.nodes) < len(room) and len({launch.hosts for launch in launches}) == 1:
        hosts = launches[0].hosts or range(len(case.nodes))
        return f"only on node {_numbers(hosts)} of {len(room)}"
    several = case.device is Device.CUDA and not case.first_device
    needed = case.nodes[0] * case.devices_per_rank
    if (
        several
        and len(room) == 1
        and needed < room[0]
        and len({launch.devices for launch in launches}) == 1
    ):
        first = launches[0].devices[0] if launches[0].devices else 0
        return f"only on device {_numbers(range(first, first + needed))} of {room[0]}"
    return ""


def _numbers(numbers: Sequence[int]) -> str:
    """``0``, ``0 to 3``, or the first few."""
    if len(numbers) == 1:
        return str(numbers[0])
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:8]))
