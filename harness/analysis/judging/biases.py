"""Biases: unintended differences between the arms of a contrast, and their effect on its value.

A contrast is a ratio of a metric between two arms. An arm is a case in its role in a comparison,
as the subject or as a part of the baseline.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from harness.analysis.judging.contrast_data import ContrastData, like_launches_sd, timed
from harness.analysis.judging.question import Caveat, bias
from harness.analysis.samples import steadiness
from harness.analysis.samples.figures import idle_s
from harness.cases import CaseSpec, Contrast, Device, Mode, Plan, StandIn, metrics
from harness.host import admission
from harness.record import (
    HALVES_SINCE,
    Expected,
    LaunchRecord,
    Purpose,
    RankRecord,
    Reason,
    RunRecord,
)

#: Largest background load that is ignored, as a share of the time of a launch's cores. Such small
#: loads cannot be measured: the kernel counts load in clock ticks of 10 ms, and the timed part of a
#: launch may take only a third of a second.
LEAST_LOAD = 0.02
#: Seconds of a clock tick. The kernel counts the busy time of a core in ticks, to within one tick.
TICK_S = 0.01
#: Largest share of its time that a rank is assumed to have lost. The limit keeps ratios of the
#: remaining time finite.
MOST_LOST = 0.99


def around(launches: Sequence[LaunchRecord]) -> bool:
    """Return whether other processes used more than ``LEAST_LOAD`` of these launches' cores.

    The load is averaged over the launches that recorded it.
    """
    loads = [launch.foreign_load for launch in launches if launch.foreign_load is not None]
    return bool(loads) and fmean(loads) > LEAST_LOAD


def lost_to_load(
    launches: Sequence[LaunchRecord], run: RunRecord, *, beside: bool, quota: bool = True
) -> float | None:
    """Return the mean share of time that other processes can have taken from these launches.

    Return None if the background load of one of them is unknown. ``beside`` says that other
    processes used this machine, even if they did not use these cores. ``quota`` says whether to
    include the time in which a CPU quota stopped the ranks. It is False for injected stragglers,
    because the harness slows them down by a quota.
    """
    shares = [_lost(launch, run, beside=beside, quota=quota) for launch in launches]
    known = [share for share in shares if share is not None]
    return fmean(known) if known and len(known) == len(shares) else None


def _lost(launch: LaunchRecord, run: RunRecord, *, beside: bool, quota: bool) -> float | None:
    if launch.denied is None:
        return None
    load = launch.foreign_load or 0.0
    waited = (launch.throttled or 0.0) if quota else 0.0
    if load > LEAST_LOAD:
        waited += _waited(launch, load)
    if load > LEAST_LOAD or beside:
        waited += _pressed(launch, run)
    # The delay of simulated compute behind its schedule was measured; the loss cannot exceed it.
    if launch.late is not None:
        waited = min(waited, launch.late)
    return min(MOST_LOST, waited)


def _waited(launch: LaunchRecord, load: float) -> float:
    """Return the share of time in which ranks may have waited for cores that other processes used.

    The share is relative to the timed part of the launch. The kernel counts how long the threads of
    the ranks waited for a core. The result assumes the worst case, in which the threads waited one
    after another. It is at most the time in which other processes used those cores. Without the
    kernel's counts, all of the load is assumed to have been on the cores of one rank.
    """
    window_s = max((rank.window_s for rank in launch.ranks), default=0.0)
    waits = [rank.waited_s for rank in launch.ranks if rank.waited_s is not None]
    if not window_s or len(waits) < len(launch.ranks):
        return load * max(Counter(rank.host for rank in launch.ranks).values(), default=1)
    num_cores = len({(rank.host, cpu) for rank in launch.ranks for cpu in rank.affinity})
    return min(load * num_cores, sum(waits) / window_s)


def _pressed(launch: LaunchRecord, run: RunRecord) -> float:
    """Return the additional CPU time of a launch, compared with the best launch of its case.

    It is a share of the timed part of the launch. The CPU times of steps are compared.
    """
    alike = [x for x in run.by_case.get(launch.case, ()) if x.purpose in _ALIKE and x.usable]
    best = min((cpu for x in alike if (cpu := _cpu_of_step(x)) is not None), default=None)
    of_step = _cpu_of_step(launch)
    if best is None or of_step is None or launch.steps is None:
        return 0.0
    window_s = max(rank.window_s for rank in launch.ranks)
    return (of_step - best) * launch.steps.count / window_s if window_s else 0.0


#: Purposes of launches whose steps do the same work.
_ALIKE = (Purpose.PILOT, Purpose.PROBE, Purpose.TIMED)


def _cpu_of_step(launch: LaunchRecord) -> float | None:
    """Return the CPU seconds per step of the busiest rank, or None if no steps were timed."""
    if launch.steps is None or not launch.steps.count:
        return None
    return max((rank.cpu_s for rank in launch.ranks), default=0.0) / launch.steps.count


def sentence(launches: Sequence[LaunchRecord], name: str) -> str:
    """Return a sentence on the background load or the CPU quota in launches of one arm.

    Each of them has a limit, above which the host is reported as unfit before a run
    (``host.admission``). Return an empty string if neither exceeds its limit.
    """
    known = [launch for launch in launches if launch.foreign_load is not None]
    if known and fmean(map(_sure, known)) > admission.FOREIGN_LOAD:
        share = fmean(launch.foreign_load or 0.0 for launch in known)
        return f"other processes used {share:.0%} of the cores of {name}"
    worst = max((launch.throttled or 0.0 for launch in launches), default=0.0)
    if worst > admission.THROTTLED:
        return f"a CPU quota held the ranks of {name} back for {worst:.0%} of the time"
    return ""


def _sure(launch: LaunchRecord) -> float:
    """Return a lower limit of the share of a launch's cores that other processes used.

    The count of busy time may be too large by one clock tick.
    """
    window_s = max((rank.window_s for rank in launch.ranks), default=0.0)
    return max(0.0, (launch.foreign_load or 0.0) - TICK_S / window_s) if window_s else 0.0


def kept(evidence: ContrastData) -> str:
    """Return a sentence if all launches of an arm had the same placement although several exist.

    Return an empty string if no arm has this property. A placement is a choice of nodes or GPUs. A
    choice of cores is not a placement, because the kernel moves ranks between cores.
    """
    if not metrics.metric(evidence.contrast.metric).of_time:
        return ""
    for arm in sorted(evidence.arms, key=lambda arm: arm.name):
        if where := _only(arm.case, evidence.timed_of([arm.name]), evidence.run.settings.nodes):
            return f"{arm.name} ran {where}: its placements were not drawn at random"
    return ""


def _only(case: CaseSpec, launches: Sequence[LaunchRecord], room: Sequence[int]) -> str:
    """Return the placement that all these launches had, as text.

    Return an empty string if they had several placements, or if only one exists.
    """
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
    """Return these numbers as text: ``0``, ``0 to 3``, or a list of the first eight."""
    if len(numbers) == 1:
        return str(numbers[0])
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:8]))


#: Normal quantile of a one-sided 70 % bound. Together with the judge's interval it keeps wrong
#: PASSes under 1 % (``benchmarks/experiments/rates.py``).
UPPER = 0.52
#: A slowdown is clear if it exceeds this many standard errors. A slowdown
#: exceeds this limit by chance once in 200 times.
CLEAR = 2.6
#: Largest number of probes that launch a baseline alone. Probes after the first one are made only
#: if nothing but the effect of concurrent launches keeps a verdict open.
PROBES = 4
#: If launches slow each other down clearly and by more than this share, the launches of the plan do
#: not run concurrently.
LEAST_SLOWDOWN = 0.005
#: Share of its speed that a baseline is assumed to lose to concurrent launches if no probe measured
#: the slowdown.
UNKNOWN = 0.5
#: Relative standard deviation that launches are assumed to have until it is measured. It is the
#: median of public clusters.
USUAL_SD = 0.005
#: A device counts as slow only if its speed lies below the median by more than this share.
SLOW = 0.01
#: A device counts as slow only if at least this many devices ran the same world at the same time.
FEWEST_PAIRS = 4
#: A device counts as slow only if its distance from the median exceeds this many robust standard
#: deviations.
ODD = 4.0


def disturb(run: RunRecord, plan: Plan) -> bool:
    """Return whether a baseline of the plan is clearly slower in concurrent launches than alone.

    Also return True if all probes of a baseline ran alone, because the machine has too few devices
    for two of them. The slowdown is unknown in this case.
    """
    for case in _baselines(plan, plan.contrasts):
        probes = [launch for launch in run.by_case.get(case, ()) if launch.purpose is Purpose.PROBE]
        if len(probes) > 1 and not any(probe.slot for probe in probes):
            return True
        slowdown = _slowdown(run, case)
        if slowdown is not None and slowdown[0] > max(LEAST_SLOWDOWN, CLEAR * slowdown[1]):
            return True
    return False


def lost_to_neighbours(run: RunRecord, plan: Plan, contrast: Contrast) -> float:
    """Return the share of speed that a contrast's baseline may have lost to concurrent launches.

    It is the upper end of a one-sided 70 % interval of the slowdown, multiplied by the fraction of
    the baseline's launches that ran concurrently with other launches.
    """
    shares = [0.0]
    for name in contrast.baseline:
        launches = [launch for launch in timed(run, plan, None) if launch.arm == name]
        beside = sum(bool(launch.slot) for launch in launches)
        if not beside:
            continue
        slowdown = _slowdown(run, plan.arm(name).case.hash)
        if slowdown is None:  # no probe measured it, so no PASS or FAIL may rest on it
            return UNKNOWN
        slower, error = slowdown
        shares.append(beside / len(launches) * -math.expm1(-max(0.0, slower + UPPER * error)))
    return max(shares)


@dataclass(frozen=True, kw_only=True)
class SlowDevice:
    """A device that was slower than the median of several devices.

    ``among`` is the number of these devices, which all ran the same world at the same time.
    ``slower`` is the relative difference of the device's speed from their median.
    """

    node: int
    host: str
    device: int
    slower: float
    among: int

    @property
    def sentence(self) -> str:
        where = f"node {self.node} ({self.host}), device {self.device}"
        return f"{where}: {self.slower:.1%} slower than the median of {self.among} devices"


def slow_devices(run: RunRecord) -> list[SlowDevice]:
    """Return the devices that were clearly slower than the others when all ran the same world."""
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
    """Return the slowdown of a case in concurrent launches and its standard error, as logarithms.

    They are computed from the probes of the case. If the probes did not run both alone and
    concurrently, they are computed from its timed launches. Return None if the timed launches did
    not run in both ways either.
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


#: Bytes of memory traffic for one parameter in a step of AdamW. It reads the weight, the gradient
#: and two moments, and writes the weight and the moments, 4 B each.
ADAMW_BYTES = 28
#: Bandwidth in B/s of slow memory of each kind of device.
MEMORY_BYTES = {Device.CPU: 5e9, Device.CUDA: 1e12}
#: Largest plausible ratio of the baseline's CPU time per sample to the subject's. Correct baselines
#: of the shipped suites took 0.2 to 1.2 times as much as the subject, both on quiet cores and with
#: 25 other programs running.
MOST_TIMES = 1.5
#: Smallest number of launches of an arm for which the two sides of a contrast are compared. The
#: comparison uses the launch that was disturbed least.
LEAST_LAUNCHES = 2
#: Time by which a baseline may wait longer than the subject, as a share of the baseline's time per
#: sample. Correct baselines usually wait less than the subject, because a single rank neither
#: exchanges gradients nor competes for the disk.
LONGER = 0.2


def excess(evidence: ContrastData, *, if_cut: bool = False) -> str:
    """Return a sentence if the baseline is slower than the subject's training can explain.

    The check compares the CPU time and the waiting time per sample of both sides. It applies to
    throughput metrics in weak scaling on CPUs, and to ranks that hold all layers and weights. With
    ``if_cut`` it applies only to ranks that hold parts of them. Return an empty string if the
    baseline is plausible or is not checked. Records older than ``HALVES_SINCE`` are not checked.
    """
    case = evidence.subject
    measured = metrics.metric(evidence.contrast.metric)
    weak = case.mode is Mode.WEAK and evidence.contrast.against in ("plain", "wrapped")
    if not (weak and measured.read == "throughput" and case.device is Device.CPU):
        return ""
    if evidence.run.schema < HALVES_SINCE or StandIn.PACED in case.stand_in:
        return ""
    subject = evidence.timed_of([evidence.contrast.subject])
    baseline = evidence.timed_of(evidence.contrast.baseline)
    described = evidence.run.described[case.hash]
    expected, facts = described.expected, described.facts
    if (expected is not None and _cut(expected)) is not if_cut:
        return ""
    if idle := _waits_longer(subject, baseline):
        return idle
    if case.script or expected is None or facts is None:
        return ""
    subject_s = _cpu_s(subject)
    theirs = _cpu_s(baseline)
    if subject_s is None or theirs is None:
        return ""
    samples = min(
        launch.consumed / launch.steps.count
        for launch in baseline
        if launch.steps and launch.consumed
    )
    update_s = ADAMW_BYTES * facts.num_params * facts.trained / MEMORY_BYTES[case.device] / samples
    # The subject's ranks may divide the optimizer's work; the baseline has to do all of it.
    if theirs - min(update_s, theirs / 2) <= MOST_TIMES * subject_s:
        return ""
    return (
        f"the baseline takes {theirs / subject_s:.2f} times the subject's CPU time for a sample: it"
        " does more work than the same training needs"
    )


def faster_alone(evidence: ContrastData) -> float:
    """Return how many times less CPU time a sample takes in strong scaling than on the baseline.

    In strong scaling a rank has fewer samples, whose activations may fit into caches. The result is
    1 if the subject takes longer, and if it is not measured: in weak scaling, on devices, and with
    a user's strategy, which could make the baseline slow.
    """
    case = evidence.subject
    theirs = [
        kind
        for arm in evidence.arms
        for kind in evidence.run.described[arm.case.hash].theirs
        if kind != "models"
    ]
    if case.mode is not Mode.STRONG or case.device is not Device.CPU or theirs or case.script:
        return 1.0
    subject_s = _cpu_s(evidence.timed_of([evidence.contrast.subject]))
    baseline_s = _cpu_s(evidence.timed_of(evidence.contrast.baseline))
    if subject_s is None or baseline_s is None:
        return 1.0
    return max(1.0, baseline_s / subject_s)


def _waits_longer(subject: list[LaunchRecord], baseline: list[LaunchRecord]) -> str:
    """Return a sentence if a baseline waits longer per sample than the subject, or an empty one.

    Time in which other processes used the cores is not counted as waiting. The subject's ranks also
    wait for each other, so a correct baseline waits less.
    """
    least = _of_launches(baseline, idle_s)
    most = _of_launches(subject, _idle_at_most_s)
    whole = _of_launches(baseline, lambda rank: rank.window_s)
    if not (least and most and whole) or min(least) <= max(most) + LONGER * min(whole):
        return ""
    return (
        f"the baseline is idle for {1e3 * min(least):.3g} ms a sample without waiting for a core,"
        f" and the subject for {1e3 * max(most):.3g} ms at most: something slows the baseline down"
    )


def _idle_at_most_s(rank: RankRecord) -> float:
    """Return the seconds in which a rank was idle.

    If the kernel did not count the waits for a core, the result is an upper limit.
    """
    return idle_s(rank) if rank.waited_s is not None else rank.window_s - rank.cpu_s


def _of_launches(
    launches: list[LaunchRecord], seconds: Callable[[RankRecord], float]
) -> list[float]:
    """Return the seconds per sample in each launch, summed over ranks.

    Return an empty list if fewer than ``LEAST_LAUNCHES`` launches can be used.
    """
    usable = [launch for launch in launches if launch.usable and launch.consumed and launch.ranks]
    per_sample = [sum(map(seconds, launch.ranks)) / (launch.consumed or 1) for launch in usable]
    return per_sample if len(per_sample) >= LEAST_LAUNCHES else []


def _cut(expected: Expected) -> bool:
    """Return whether each rank holds only a part of the weights or layers.

    Such a rank does less work per sample than the baseline.
    """
    return expected.stages > 1 or any("Shard" in placed for placed in expected.placements)


def _cpu_s(launches: list[LaunchRecord]) -> float | None:
    """Return the least CPU time per sample over the launches, in seconds, or None.

    The CPU time is the sum over ranks.
    """
    per_sample = _of_launches(launches, lambda rank: rank.cpu_s)
    return min(per_sample) if per_sample and min(per_sample) > 0 else None


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """The timed launches and the calibration launches (pilots) of one side of a contrast."""

    timed: Sequence[LaunchRecord]
    pilots: Sequence[LaunchRecord]


def find_biases(evidence: ContrastData) -> tuple[Caveat, ...]:
    """Return the biases of a contrast; bytes, memory and shares of a step have none."""
    contrast = evidence.contrast
    metric = metrics.metric(contrast.metric)
    if not metric.of_time or metric.profiled:
        return ()
    subject = _arm(evidence, (contrast.subject,))
    below = _arm(evidence, contrast.baseline) if contrast.baseline else None
    return (
        *_loaded(evidence, subject, below),
        *_uneven(subject, below, more_is_better=metric.more_is_better),
        *_scattered(evidence),
        *(tilt for arm in (subject, below) if arm for tilt in _drifting(arm.timed)),
        *_neighbours(evidence, more_is_better=metric.more_is_better),
    )


def _uneven(subject: _Arm, below: _Arm | None, *, more_is_better: bool) -> Iterator[Caveat]:
    """Yield the biases due to lower clocks or stalls that slowed one arm more than the other."""
    highest = max(_clocks(subject) + (_clocks(below) if below else []), default=0.0)
    for what, lost, compared in _SOURCES:
        of_subject = lost(subject, highest)
        theirs = lost(below, highest) if below else 0.0
        if of_subject is None or theirs is None or abs(of_subject - theirs) <= LEAST_LOAD:
            continue
        # The subject would be faster by this factor if neither arm had lost anything.
        faster = (1 - theirs) / (1 - of_subject)
        factor = faster if compared else 1 / faster
        sides = f"{of_subject:.0%} of the subject's time"
        if below:
            sides += f" and {theirs:.0%} of the baseline's"
        yield bias(factor if more_is_better else 1 / factor, f"{what} {sides}")


def _scattered(evidence: ContrastData) -> Iterator[Caveat]:
    """Yield a bias in each direction if the throughputs of identical launches differ too much."""
    spread = like_launches_sd(evidence.all_launches)
    if spread is None or spread <= admission.LAUNCH_SD:
        return
    reason = (
        f"identical launches of one arm in one block differ by {spread:.0%}; use quiet cores,"
        " fixed clocks or another machine"
    )
    yield bias(1 / (1 + spread), reason)
    yield bias(1 + spread, reason)


def _neighbours(evidence: ContrastData, *, more_is_better: bool) -> Iterator[Caveat]:
    """Yield a bias if launches that ran at the same time may have slowed the baseline down."""
    if share := lost_to_neighbours(evidence.run, evidence.plan, evidence.contrast):
        factor = 1 - share if more_is_better else 1 / (1 - share)
        reason = f"concurrent launches may have taken {share:.1%} of the baseline's speed"
        yield bias(factor, reason, Reason.NEIGHBOURS)


def _arm(evidence: ContrastData, names: Sequence[str]) -> _Arm:
    return _Arm(timed=evidence.timed_of(names), pilots=evidence.pilots_of(names))


def _loaded(evidence: ContrastData, subject: _Arm, below: _Arm | None) -> Iterator[Caveat]:
    """Yield a bias for the time that each arm can have lost to other processes or a CPU quota.

    Each bias corrects one arm only. The two biases give the largest and the smallest possible
    ratio.
    """
    more = metrics.metric(evidence.contrast.metric).more_is_better
    quota = not evidence.slowed_on_purpose  # a straggler's quota is to be measured
    beside = any(around(arm.timed) for arm in (subject, below) if arm)
    for arm, whose, slowed in ((subject, "the subject", 1), (below, "the baseline", -1)):
        share = lost_to_load(arm.timed, evidence.run, beside=beside, quota=quota) if arm else None
        if share is not None and share > LEAST_LOAD:
            faster = (1 - share) ** -slowed
            reason = (
                f"other processes or a CPU quota may have taken {share:.0%} of {whose}'s time"
                " (top -d 1)"
            )
            yield bias(faster if more else 1 / faster, reason)


def _drifting(launches: Sequence[LaunchRecord]) -> list[Caveat]:
    """Return the biases of an arm if exactly one of its launches drifts, one in each direction.

    If the steps of this launch were settled at its end, its mean is wrong by half of the drift. If
    the drift continued for as long again, its mean is wrong by all of the drift.
    """
    windows = [launch.steadiness for launch in launches if launch.steadiness]
    if (odd := steadiness.outlier(windows)) is None:
        return []
    off = math.exp(windows[odd].drift)
    name = [launch for launch in launches if launch.steadiness][odd].launch
    reason = f"{name} was not steady: its steps drift by {off - 1:+.1%}"
    return [bias(factor, reason, Reason.NOT_STEADY) for factor in (1 / off, off)]


def _clocks(arm: _Arm) -> list[float]:
    """Return the mean of each GPU's lowest and highest SM clock in each timed launch, in MHz."""
    ranges = (gpu.sm_clock_mhz for launch in arm.timed for gpu in launch.gpus)
    return [sum(r) / len(r) for r in ranges if r]


def _slowed(arm: _Arm, highest: float) -> float | None:
    """Return the relative difference of an arm's mean clock from ``highest``, a clock in MHz.

    The result is positive if the mean clock is lower. Return None if no clock was recorded.
    """
    clocks = _clocks(arm)
    return 1 - fmean(clocks) / highest if clocks else None


def _hidden(arm: _Arm, _: float) -> float | None:
    """Return by how much the stalls' share of time is larger in pilots than in timed launches.

    A pilot is longer than the timed part of a launch, so it also contains rare stalls.
    """
    far, near = (
        [launch.stalls.share for launch in launches if launch.stalls is not None]
        for launches in (arm.pilots, arm.timed)
    )
    return max(0.0, fmean(far) - fmean(near)) if far and near else None


#: Sources of lost time. Each has a description, a function that returns the share of an arm's time
#: that was lost, and whether the compared launches contain this loss.
_SOURCES: Sequence[tuple[str, Callable[[_Arm, float], float | None], bool]] = (
    ("lower clocks took", _slowed, True),
    ("stalls that the timed windows do not contain would take", _hidden, False),
)
