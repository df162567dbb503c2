"""The record of one launch: its measurements, and how it ended."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, pstdev
from typing import Any

from harness.cases import Metric
from harness.host.nvml import GpuWindow
from harness.record.anatomy import Anatomy
from harness.record.budget import Budget
from harness.record.rank import RankRecord

#: The first words of the message about a launch whose simulated compute missed its deadlines.
STOOD_STILL = "slot too short"
#: Upper limit of how often the launches of a plan are timed again because simulated compute missed
#: its deadlines. Launches that ran concurrently are timed again with them.
STALLS = 2
#: Suffix of ``LaunchRecord.slot`` for a profile that was taken after the timed window, in the same
#: world.
BEHIND = "-behind"
#: Kinds of causes that may be temporary: a lost node or rank, or a rank that stopped sending
#: messages. Exceptions, exits, lack of memory and mismatched collectives are not among them,
#: because they would recur.
PASSING = frozenset({"node", "signal", "hang", "late", "peer"})
#: The kind of cause of a launch that ended because its model cannot be compared with a reference.
NOT_COMPARABLE = "not comparable"
#: Upper limit of how often launches of a plan are repeated after a temporary failure.
FLAKES = 1


class LaunchStatus(StrEnum):
    """The outcome of a launch: it ended normally, or it failed."""

    OK = "ok"
    FAILED = "failed"


class Purpose(StrEnum):
    """The purpose of a launch. Only ``timed`` launches are compared, and time budgets come from
    ``profile`` launches.

    ``gate`` launches check correctness. ``pilot`` launches calibrate the number of steps. ``probe``
    launches run a baseline both alone and concurrently with other launches. A ``stalled`` launch
    was timed, but its simulated compute missed its deadlines because the host paused. It says
    nothing about the case and is timed again, together with the launches that ran concurrently. A
    ``flaked`` launch failed for a temporary cause and was repeated once; the field ``intended`` has
    its original purpose. A ``round`` launch runs on two nodes to find slow nodes. ``bits`` launches
    compare the results of ranks for the same micro-batches bit by bit.
    """

    GATE = "gate"
    PILOT = "pilot"
    PROBE = "probe"
    TIMED = "timed"
    STALLED = "stalled"
    FLAKED = "flaked"
    PROFILE = "profile"
    REFERENCE = "reference"
    FABRIC = "fabric"
    RECOVERY = "recovery"
    ROUND = "round"
    BITS = "bits"


#: Purposes of launches that are repeated after a temporary failure. Other launches of the plan need
#: their results.
REPEATED = (
    Purpose.GATE, Purpose.PILOT, Purpose.PROBE, Purpose.TIMED, Purpose.PROFILE, Purpose.REFERENCE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """The trend of the step time in the kept window of a launch.

    ``drift`` is the natural logarithm of a ratio: the mean step time of the window's later half
    divided by the mean step time of its earlier half. ``t`` is the drift divided by its standard
    error, which is estimated from means of 5 steps; None if the window is too short. ``mser`` is
    the number of further steps that the rule MSER-5 would drop. ``steady`` is the conclusion from
    this launch alone.
    """

    drift: float
    t: float | None
    mser: int
    steady: bool


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The rank that ended a launch, and the reason.

    ``kind`` is exception, not comparable, memory, signal, exit, node, collective, hang, late or
    peer. ``sure`` is True if it is certain which rank failed, even if the reason is not. ``phase``
    and ``step`` are the phase and the step in which the rank failed. ``victims`` are the other
    ranks that failed.
    """

    rank: int | None
    kind: str
    message: str
    phase: str
    step: int
    sure: bool
    victims: tuple[int, ...] = ()
    node: int = 0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The step times in the kept window of a launch, in seconds. The time of a step is the time of
    its slowest rank.
    """

    count: int
    mean_s: float
    median_s: float
    p95_s: float
    worst_s: float


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """The steps of the kept window that took several times the median step time.

    ``steps`` are the numbers of these steps in the launch. ``share`` is the total time by
    which these steps exceeded the median, as a fraction of the window's duration.
    """

    steps: tuple[int, ...]
    share: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The memory growth of the fastest-growing rank.

    ``slope`` is the growth in bytes per step by least squares, with the 95 % interval from ``low``
    to ``high``. ``steady`` is the fraction of steps in which memory grew. It is large for a leak,
    and small for an allocator that settles.
    """

    rank: int
    steady: float
    slope: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The point at which the mean loss of several steps reached the target of the plan.

    ``steps``, ``samples`` and ``seconds`` are counted from the beginning of the training.
    """

    steps: int
    samples: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """One launch of one arm: a new world of processes, which is the unit of replication.

    ``attempt`` is 0, or 1 for the new set of launches that confirms a FAIL. ``foreign_load`` is the
    fraction of the CPU time of the ranks' cores that other processes used during the launch.

    ``turn`` is the number of the pass over the plan's arms. Launches with the same turn form pairs.
    ``consumed`` is the number of distinct samples that the world trained on in the kept window.
    ``losses`` is a digest of the losses of all steps, and ``compared`` is the number of losses that
    were compared with the reference. ``wall_s`` is the time in seconds from the command to the end
    of the last rank. ``agent`` identifies the process that forked the ranks. ``wrong`` lists the
    deviations from the request (world, samples, bytes) that the parent process found. A launch with
    any deviation is never judged. ``accepted`` lists the deviations that the user of a script
    accepts. A profiled launch has a ``budget``. Its ``perturbation`` is the time of its profiled
    steps divided by the time of its other steps. ``perturbation_low`` is the lower end of the
    interval of this ratio, if there is one.

    ``reached`` is None if the plan has no target loss, or if the launch did not reach it.
    ``final_loss`` is the mean loss of the last steps; only plans with a target have it.

    ``hosts`` are the numbers of the nodes on which the launch ran (empty: the first nodes).
    Launches with the same ``slot`` ran concurrently on separate devices. ``devices`` has the number
    of the first device on each host. If this launch is a profile that was taken after a timed
    window in the same world, ``behind`` is the name of the timed launch.
    """

    launch: str
    purpose: Purpose
    plan: str
    arm: str
    case: str
    block: int
    turn: int
    started_at: str
    wall_s: float
    agent: str
    engine: str
    status: LaunchStatus
    cause: Cause | None
    ranks: tuple[RankRecord, ...]
    consumed: int = 0
    steps: Steps | None = None
    growth: Growth | None = None
    losses: str = ""
    wrong: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    gpus: tuple[GpuWindow, ...] = ()
    attempt: int = 0
    steadiness: Steadiness | None = None
    foreign_load: float | None = None
    budget: Budget | None = None
    perturbation: float | None = None
    perturbation_low: float | None = None
    compared: int = 0
    stalls: Stalls | None = None
    anatomy: Anatomy | None = None
    slot: str = ""
    behind: str = ""
    hosts: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    reached: Reached | None = None
    final_loss: float | None = None
    intended: Purpose | None = None

    @property
    def asked(self) -> Purpose:
        """The original purpose of the launch, even if it stalled or failed temporarily."""
        if self.purpose in (Purpose.STALLED, Purpose.FLAKED):
            return self.intended or Purpose.TIMED
        return self.purpose

    @property
    def stood_still(self) -> bool:
        """Whether the launch deviates from the request only in missed deadlines of simulated
        compute.
        """
        return bool(self.wrong) and all(word.startswith(STOOD_STILL) for word in self.wrong)

    @property
    def discarded(self) -> bool:
        """Whether the launch is ignored, so that its failure does not stop the run."""
        stalled = self.stood_still and self.purpose in (Purpose.PILOT, Purpose.STALLED)
        return stalled or self.purpose is Purpose.FLAKED

    @property
    def passing(self) -> bool:
        """Whether the launch failed for a reason that may be temporary."""
        failed = self.status is LaunchStatus.FAILED and self.cause is not None
        return failed and self.cause is not None and self.cause.kind in PASSING

    @property
    def lost(self) -> bool:
        """Whether a node was lost during the launch. Such a launch says nothing about the case."""
        return self.passing and self.cause is not None and self.cause.kind == "node"

    @property
    def usable(self) -> bool:
        """Whether the launch ended normally and ran as requested."""
        return self.status is LaunchStatus.OK and not self.wrong

    @property
    def changed(self) -> float:
        """A lower limit of the factor by which the profiler lengthened the steps that it recorded.

        The limit is the lower end of the interval of this factor. Without an interval, the limit is
        the measured factor, and without a measurement it is 1.
        """
        return self.perturbation_low or self.perturbation or 1.0

    @property
    def throughput(self) -> float | None:
        """The consumed samples divided by the duration of the slowest rank's kept window, in
        samples/s.
        """
        return (
            None
            if self.steps is None
            else self.consumed / max(rank.window_s for rank in self.ranks)
        )

    @property
    def tail_throughput(self) -> float | None:
        """The samples of a mean step divided by the 95th percentile of step times, in samples/s."""
        if self.steps is None:
            return None
        return self.consumed / self.steps.count / self.steps.p95_s

    @property
    def denied(self) -> float | None:
        """The fraction of the CPU time of the ranks' cores that the ranks could not use.

        Other processes used this time, or a CPU quota withheld it. None if neither is known.
        """
        if self.foreign_load is None and self.throttled is None:
            return None
        return (self.foreign_load or 0.0) + (self.throttled or 0.0)

    @property
    def throttled(self) -> float | None:
        """The fraction of the window for which a CPU quota stopped the most affected rank.

        None if unknown.
        """
        shares = [
            rank.throttled_s / rank.window_s
            for rank in self.ranks
            if rank.throttled_s is not None and rank.window_s
        ]
        return max(shares, default=None)

    @property
    def late(self) -> float | None:
        """The time by which a simulated launch exceeded its schedule, as a fraction of its window.

        None for other launches.
        """
        planted = [rank.planted_s for rank in self.ranks if rank.planted_s]
        if self.steps is None or not planted or len(planted) < len(self.ranks):
            return None
        planned_s = self.steps.count * max(planted)
        behind = max(0.0, max(rank.window_s for rank in self.ranks) / planned_s - 1)
        return behind / (1 + behind)

    @property
    def peak_bytes(self) -> float | None:
        """The highest peak memory of any rank in bytes; None if a rank does not report it."""
        peaks = [rank.peak_bytes for rank in self.ranks if rank.peak_bytes is not None]
        known = self.steps is not None and len(peaks) == len(self.ranks)
        return float(max(peaks)) if known else None

    @property
    def reserved_bytes(self) -> float | None:
        """The highest peak of memory that the allocator of any rank reserved on its device, in
        bytes.

        None on CPUs.
        """
        peaks = [rank.allocator.reserved_bytes for rank in self.ranks if rank.allocator is not None]
        known = self.steps is not None and len(peaks) == len(self.ranks)
        return float(max(peaks)) if known else None

    @property
    def sent_bytes(self) -> float | None:
        """The mean number of bytes per step that the rank with the most traffic sent.

        None if the traffic does not go through sockets.
        """
        sent = [rank.sent_bytes for rank in self.ranks if rank.sent_bytes is not None]
        known = self.steps is not None and len(sent) == len(self.ranks)
        return max(sent) / self.steps.count if known and self.steps else None

    @property
    def skipped_steps(self) -> float | None:
        """The number of steps that the gradient scaler skipped, including those of the warm-up.

        None without a scaler.
        """
        counts = [len(rank.ran.skipped) for rank in self.ranks if rank.ran.skipped is not None]
        return float(max(counts)) if self.steps is not None and counts else None

    @property
    def staleness(self) -> float | None:
        """The largest number of steps by which one rank lagged behind another.

        None if all ranks step together.
        """
        steps = [rank.ran.staleness for rank in self.ranks if rank.ran.staleness is not None]
        return float(max(steps)) if self.steps is not None and steps else None

    @property
    def fed(self) -> Mapping[str, float] | None:
        """The work of producing the batches of a step, as a mean over ranks.

        ``read_s`` and ``decode_s`` are seconds summed over the workers of a rank. ``disk_bytes`` is
        the number of bytes read from disks. None for inputs that do not report their work.
        """
        medians = [rank.ran.fed for rank in self.ranks if rank.ran.fed]
        return (
            {key: fmean(median[key] for median in medians) for key in medians[0]}
            if medians
            else None
        )

    @property
    def compile_s(self) -> float | None:
        """The time that the slowest rank spent on compilation before the window, in seconds."""
        return max((rank.ran.compile_s for rank in self.ranks if rank.ran.compile_s), default=None)

    @property
    def codec_s(self) -> tuple[float, float] | None:
        """The seconds per step that a compressor needs on the slowest rank.

        The first number is for encoding and adding, the second for decoding.
        """
        parts = [rank.ran.codec_s for rank in self.ranks if rank.ran.codec_s]
        if not parts:
            return None
        encoding = max(part.get("encode", 0.0) + part.get("add", 0.0) for part in parts)
        return encoding, max(part.get("decode", 0.0) for part in parts)

    @property
    def expert_variation(self) -> float | None:
        """The standard deviation of the loads of the experts divided by their mean, for the most
        uneven layer.
        """
        by_layer = loads(self.ranks).values()
        return max((pstdev(load) / fmean(load) for load in by_layer), default=None)

    @property
    def dropped_share(self) -> float | None:
        """The share of token-to-expert assignments that exceeded an expert's capacity."""
        layers = [routed for rank in self.ranks for routed in (rank.routed or {}).values()]
        asked = sum(sum(routed.asked) for routed in layers)
        return sum(routed.dropped for routed in layers) / asked if asked else None

    @property
    def energy_per_sample(self) -> float | None:
        """The energy of all devices in the kept window divided by the samples, in J.

        None if a device does not report its energy. Older records have only the devices of one
        node, so their launches on several nodes have no value.
        """
        taken = [gpu.energy_j for gpu in self.gpus if gpu.energy_j is not None]
        everywhere = {gpu.node for gpu in self.gpus} == {rank.node for rank in self.ranks}
        known = len(taken) == len(self.gpus) > 0 and everywhere
        return sum(taken) / self.consumed if known and self.consumed else None

    def value(self, metric: Metric, *, tail: bool = False) -> float | None:
        """Return the value of a metric in this launch, in SI units; None if it was not measured."""
        path = (metric.tail if tail else "") or metric.read
        values = [self._at(part) for part in path.split("/")] if path else [None]
        top, *below = values
        if not below or top is None:
            return top
        return top / below[0] if below[0] else None

    @property
    def logged(self) -> Mapping[str, float]:
        """The metrics that the training logged: for each, the mean over the ranks that logged it.

        A metric that has no mean on one of these ranks is left out.
        """
        values: dict[str, list[float | None]] = {}
        for rank in self.ranks:
            for name, value in rank.logged.items():
                values.setdefault(name, []).append(value)
        known = {name: [v for v in of_ranks if v is not None] for name, of_ranks in values.items()}
        return {
            name: fmean(of_ranks)
            for name, of_ranks in known.items()
            if len(of_ranks) == len(values[name])
        }

    def _at(self, path: str) -> float | None:
        """Return the value at the end of a path of attributes; None if one of them is None."""
        value: Any = self
        for name in path.split("."):
            if isinstance(value, Mapping):
                value = value.get(name)
            else:
                value = None if value is None else getattr(value, name)
        return value  # type: ignore[no-any-return]


def loads(ranks: Iterable[RankRecord]) -> Mapping[str, tuple[int, ...]]:
    """Return, for each layer, the number of tokens assigned to each expert, over all ranks."""
    by_layer: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for layer, routed in (rank.routed or {}).items():
            before = by_layer.get(layer, (0,) * len(routed.asked))
            by_layer[layer] = tuple(a + b for a, b in zip(before, routed.asked, strict=True))
    return by_layer


def num_again(launches: Iterable[LaunchRecord], purpose: Purpose) -> int:
    """Return how often launches were repeated. ``purpose`` is ``STALLED`` or ``FLAKED``.

    Launches that ran concurrently are repeated together and count once.
    """
    return len({launch.slot or launch.launch for launch in launches if launch.purpose is purpose})
