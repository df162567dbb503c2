"""Biases: what differed between the arms of a contrast besides what is compared, and its effect."""

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

#: Less than this is what clock ticks tell: 10 ms in a third of a second.
LEAST_LOAD = 0.02
#: Busy time of a core is counted in these ticks, and may be one of them off.
TICK_S = 0.01
#: No rank is taken to have lost more: then nothing is known of it.
MOST_LOST = 0.99


def around(launches: Sequence[LaunchRecord]) -> bool:
    """Whether others were at work on the cores of these launches, on average."""
    loads = [launch.foreign_load for launch in launches if launch.foreign_load is not None]
    return bool(loads) and fmean(loads) > LEAST_LOAD


def lost_to_load(
    launches: Sequence[LaunchRecord], run: RunRecord, *, beside: bool, quota: bool = True
) -> float | None:
    """The share of their time that others can have taken from these launches, their mean.

    None where one of them does not know what others used. ``beside``: others were at work on this
    machine, if not on these cores. ``quota``: whether what a quota held back counts; it is no loss
    of stragglers that are planted by one.
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
    if launch.late is not None:  # a scheduled stand-in shows it itself
        waited = min(waited, launch.late)
    return min(MOST_LOST, waited)


def _waited(launch: LaunchRecord, load: float) -> float:
    """The share of its window for which ranks can have waited for cores that others used.

    The kernel says how long their threads waited, one after another at worst, and for no longer
    than others worked on those cores. Where it does not say, all of that was on one rank's cores.
    """
    window_s = max((rank.window_s for rank in launch.ranks), default=0.0)
    waits = [rank.waited_s for rank in launch.ranks if rank.waited_s is not None]
    if not window_s or len(waits) < len(launch.ranks):
        return load * max(Counter(rank.host for rank in launch.ranks).values(), default=1)
    num_cores = len({(rank.host, cpu) for rank in launch.ranks for cpu in rank.affinity})
    return min(load * num_cores, sum(waits) / window_s)


def _pressed(launch: LaunchRecord, run: RunRecord) -> float:
    """CPU time of its steps beyond that of the case's best launch, as a share of its window."""
    alike = [x for x in run.by_case.get(launch.case, ()) if x.purpose in _ALIKE and x.usable]
    best = min((cpu for x in alike if (cpu := _cpu_of_step(x)) is not None), default=None)
    of_step = _cpu_of_step(launch)
    if best is None or of_step is None or launch.steps is None:
        return 0.0
    window_s = max(rank.window_s for rank in launch.ranks)
    return (of_step - best) * launch.steps.count / window_s if window_s else 0.0


#: Launches whose steps are the same work.
_ALIKE = (Purpose.PILOT, Purpose.PROBE, Purpose.TIMED)


def _cpu_of_step(launch: LaunchRecord) -> float | None:
    """CPU seconds of a mean step of the busiest rank."""
    if launch.steps is None or not launch.steps.count:
        return None
    return max((rank.cpu_s for rank in launch.ranks), default=0.0) / launch.steps.count


def sentence(launches: Sequence[LaunchRecord], name: str) -> str:
    """Who took how much from these launches of one arm, where it is worth a word."""
    known = [launch for launch in launches if launch.foreign_load is not None]
    if known and fmean(map(_sure, known)) > admission.FOREIGN_LOAD:
        share = fmean(launch.foreign_load or 0.0 for launch in known)
        return f"others used {share:.0%} of the cores of {name}"
    worst = max((launch.throttled or 0.0 for launch in launches), default=0.0)
    if worst > admission.THROTTLED:
        return f"a CPU quota held the ranks of {name} back for {worst:.0%} of the time"
    return ""


def _sure(launch: LaunchRecord) -> float:
    """The share of its cores that others used at least: a window of few ticks tells nothing."""
    window_s = max((rank.window_s for rank in launch.ranks), default=0.0)
    return max(0.0, (launch.foreign_load or 0.0) - TICK_S / window_s) if window_s else 0.0


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


#: One-sided 70 % of a normal: beside the judge's own interval, a wrong PASS stays under 1 %
#: (``benchmarks/experiments/rates.py``). And differences that no chance explains: 1 in 200.
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


def lost_to_neighbours(run: RunRecord, plan: Plan, contrast: Contrast) -> float:
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


#: Bytes that AdamW moves for a parameter, and those that slow memory moves in a second.
ADAMW_BYTES = 28
MEMORY_BYTES = {Device.CPU: 5e9, Device.CUDA: 1e12}
#: How many times the subject's CPU time of a sample a baseline's may be. Honest ones of the
#: shipped suites took 0.2 to 1.2 times as much, on quiet cores and beside 25 other programs.
MOST_TIMES = 1.5
#: Launches of an arm, of which the one that was disturbed least counts.
LEAST_LAUNCHES = 2
#: Of a baseline's time for a sample: so much longer than the subject it may wait. Ranks that
#: exchange gradients, and share a disk, wait longer than one alone.
LONGER = 0.2


def excess(evidence: ContrastData, *, if_cut: bool = False) -> str:
    """By how much the baseline works more for a sample, on ranks that compute on cores and hold all
    layers; else empty. Records from before this was asked say nothing. ``if_cut``: of ranks that
    are said to hold parts alone.
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
    update_s = ADAMW_BYTES * facts.num_params / MEMORY_BYTES[case.device] / samples
    if (
        theirs - min(update_s, theirs / 2) <= MOST_TIMES * subject_s
    ):  # ranks may share out the optimizer
        return ""
    return (
        f"the baseline takes {theirs / subject_s:.2f} times the subject's CPU time for a sample: it"
        " does more than the same training"
    )


def _waits_longer(subject: list[LaunchRecord], baseline: list[LaunchRecord]) -> str:
    """Whether a baseline's rank waits longer for a sample than one of the subject's, which has
    others to wait for; nobody had its cores meanwhile. Else empty.
    """
    least = _of_launches(baseline, idle_s)
    most = _of_launches(subject, _idle_at_most_s)
    whole = _of_launches(baseline, lambda rank: rank.window_s)
    if not (least and most and whole) or min(least) <= max(most) + LONGER * min(whole):
        return ""
    return (
        f"the baseline waits {1e3 * min(least):.3g} ms for a sample, not for a core, and the"
        f" subject {1e3 * max(most):.3g} ms at most: it is slow by more than the same training"
    )


def _idle_at_most_s(rank: RankRecord) -> float:
    """Seconds for which a rank had nothing to compute, at most where nobody knows who took them."""
    return idle_s(rank) if rank.waited_s is not None else rank.window_s - rank.cpu_s


def _of_launches(
    launches: list[LaunchRecord], seconds: Callable[[RankRecord], float]
) -> list[float]:
    """Seconds of all ranks for a sample, of each launch; empty of too few."""
    usable = [launch for launch in launches if launch.usable and launch.consumed and launch.ranks]
    per_sample = [sum(map(seconds, launch.ranks)) / (launch.consumed or 1) for launch in usable]
    return per_sample if len(per_sample) >= LEAST_LAUNCHES else []


def _cut(expected: Expected) -> bool:
    """Whether ranks hold parts of the weights or layers, and so do less than the baseline."""
    return expected.stages > 1 or any("Shard" in placed for placed in expected.placements)


def _cpu_s(launches: list[LaunchRecord]) -> float | None:
    """CPU seconds of all ranks for a sample, in the launch that took least."""
    per_sample = _of_launches(launches, lambda rank: rank.cpu_s)
    return min(per_sample) if per_sample and min(per_sample) > 0 else None


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """One side of a contrast: its timed launches, and its pilots."""

    timed: Sequence[LaunchRecord]
    pilots: Sequence[LaunchRecord]


def find_biases(evidence: ContrastData) -> tuple[Caveat, ...]:
    """Everything that favoured one arm; of bytes and memory nothing does."""
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
    """Clocks and stalls that hit one arm more than the other."""
    highest = max(_clocks(subject) + (_clocks(below) if below else []), default=0.0)
    for what, lost, compared in _SOURCES:
        of_subject = lost(subject, highest)
        theirs = lost(below, highest) if below else 0.0
        if of_subject is None or theirs is None or abs(of_subject - theirs) <= LEAST_LOAD:
            continue
        faster = (1 - theirs) / (1 - of_subject)  # the subject, if neither had lost anything
        factor = faster if compared else 1 / faster
        sides = f"{of_subject:.0%} of the subject's time"
        if below:
            sides += f" and {theirs:.0%} of the baseline's"
        yield bias(factor if more_is_better else 1 / factor, f"{what} {sides}")


def _scattered(evidence: ContrastData) -> Iterator[Caveat]:
    """Like launches that differ by more than the declared noise: by as much, either way."""
    spread = like_launches_sd(evidence.all_launches)
    if spread is None or spread <= admission.LAUNCH_SD:
        return
    reason = (
        f"launches of one arm in one block differ by {spread:.0%} (A/A); use quiet cores,"
        " fixed clocks or another machine"
    )
    yield bias(1 / (1 + spread), reason)
    yield bias(1 + spread, reason)


def _neighbours(evidence: ContrastData, *, more_is_better: bool) -> Iterator[Caveat]:
    """Estimates what worlds that ran at the same time may have taken from the baseline."""
    if share := lost_to_neighbours(evidence.run, evidence.plan, evidence.contrast):
        factor = 1 - share if more_is_better else 1 / (1 - share)
        reason = f"worlds beside it may have taken {share:.1%} of the baseline's speed"
        yield bias(factor, reason, Reason.NEIGHBOURS)


def _arm(evidence: ContrastData, names: Sequence[str]) -> _Arm:
    return _Arm(timed=evidence.timed_of(names), pilots=evidence.pilots_of(names))


def _loaded(evidence: ContrastData, subject: _Arm, below: _Arm | None) -> Iterator[Caveat]:
    """Both ends of what the ratio could be without others: only one arm gets back what it lost."""
    more = metrics.metric(evidence.contrast.metric).more_is_better
    quota = not evidence.slowed_on_purpose  # of stragglers it is what is measured
    beside = any(around(arm.timed) for arm in (subject, below) if arm)
    for arm, whose, slowed in ((subject, "the subject", 1), (below, "the baseline", -1)):
        share = lost_to_load(arm.timed, evidence.run, beside=beside, quota=quota) if arm else None
        if share is not None and share > LEAST_LOAD:
            faster = (1 - share) ** -slowed
            reason = (
                f"others, or a CPU quota, may have taken {share:.0%} of {whose}'s time (top -d 1)"
            )
            yield bias(faster if more else 1 / faster, reason)


def _drifting(launches: Sequence[LaunchRecord]) -> list[Caveat]:
    """The tilts of an arm in which one launch drifts as no other does.

    Its mean is off by half of the drift if it had settled by the end of its window, and by all of
    it if it went on as far again; a worst pair is off as far as that launch.
    """
    windows = [launch.steadiness for launch in launches if launch.steadiness]
    if (odd := steadiness.outlier(windows)) is None:
        return []
    off = math.exp(windows[odd].drift)
    name = [launch for launch in launches if launch.steadiness][odd].launch
    reason = f"{name} was not steady: its steps drift by {off - 1:+.1%}"
    return [bias(factor, reason, Reason.NOT_STEADY) for factor in (1 / off, off)]


def _clocks(arm: _Arm) -> list[float]:
    """The devices' clocks in the middle of each launch, MHz."""
    ranges = (gpu.sm_clock_mhz for launch in arm.timed for gpu in launch.gpus)
    return [sum(r) / len(r) for r in ranges if r]


def _slowed(arm: _Arm, highest: float) -> float | None:
    """By how much the devices' clocks were below the highest of both arms."""
    clocks = _clocks(arm)
    return 1 - fmean(clocks) / highest if clocks else None


def _hidden(arm: _Arm, _: float) -> float | None:
    """Share of time that the pilots' stalls took and those of the timed windows did not."""
    far, near = (
        [launch.stalls.share for launch in launches if launch.stalls is not None]
        for launches in (arm.pilots, arm.timed)
    )
    return max(0.0, fmean(far) - fmean(near)) if far and near else None


#: What took time, the share of an arm's that it took, and whether the windows have seen it.
_SOURCES: Sequence[tuple[str, Callable[[_Arm, float], float | None], bool]] = (
    ("lower clocks took", _slowed, True),
    ("stalls that the timed windows do not hold would take", _hidden, False),
)
