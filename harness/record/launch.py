"""The record of one launch: its measurements, and how it ended."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, pstdev
from typing import Any

from harness.cases import Metric
from harness.host.nvml import GpuWindow
from harness.record.budget import Budget
from harness.record.rank import RankRecord

#: The start of the message of a launch whose simulated compute missed its scheduled deadlines.
STOOD_STILL = "slot too short"
#: How often the launches of a plan are timed again for this reason, together with concurrent ones.
STALLS = 2
#: The suffix of the slot of profiles that follow a timed window.
BEHIND = "-behind"
#: Kinds of causes that may be temporary: a lost node or rank, or silence. Exceptions, exits, lack
#: of memory and mismatched collectives are not among them, because they would recur.
PASSING = frozenset({"node", "signal", "hang", "late", "peer"})
#: How often launches of a plan may end by a temporary cause and are repeated once.
FLAKES = 1


class LaunchStatus(StrEnum):
    """The outcome of a launch: it ended normally, or it failed."""

    OK = "ok"
    FAILED = "failed"


class Purpose(StrEnum):
    """The purpose of a launch. Only ``timed`` launches are compared, and budgets come from
    ``profile`` launches.

    ``probe`` launches run a baseline both alone and concurrently with others. A ``stalled`` launch
    was timed, but the host stopped while simulated compute waited for its schedule. It says nothing
    about the case and is timed again, together with the launches that ran concurrently. A
    ``flaked`` launch ended by a temporary cause and was repeated once; ``intended`` is its original
    purpose. A ``round`` launch runs on two nodes to find slow ones. ``bits`` compares the results
    of ranks for the same micro-batches.
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


#: Purposes of launches that are repeated after a temporary failure, because other launches wait for
#: them.
REPEATED = (
    Purpose.GATE, Purpose.PILOT, Purpose.PROBE, Purpose.TIMED, Purpose.PROFILE, Purpose.REFERENCE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """The trend in a launch's kept window. ``drift`` is the log of the mean step of its later half
    over that of its earlier half.

    ``t`` is the drift over its standard error, from means of 5 steps; None if the window is too
    short. ``mser`` is the number of further steps that MSER-5 would drop. ``steady`` is the
    conclusion from this launch alone.
    """

    drift: float
    t: float | None
    mser: int
    steady: bool


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The rank that ended a launch and the reason. ``sure`` refers to the rank, not to the reason.

    ``kind`` is exception, memory, signal, exit, node, collective, hang or peer.
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
    """The times of the kept steps of a launch in seconds. Each step counts as long as on its
    slowest rank.
    """

    count: int
    mean_s: float
    median_s: float
    p95_s: float
    worst_s: float


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """The steps of the kept window that took several times the median.

    ``steps`` are their numbers in the launch. ``share`` is the part of the window by which they
    exceeded the median.
    """

    steps: tuple[int, ...]
    share: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The memory growth in bytes per step (least squares) of the fastest-growing rank, with a 95 %
    interval.

    ``steady`` is the share of steps in which memory grew. It is large for a leak, and small for an
    allocator that settles.
    """

    rank: int
    steady: float
    slope: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The point at which the mean loss of several steps reached the target of the plan.

    It is given in steps, samples, and seconds since training began.
    """

    steps: int
    samples: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """One launch of one arm: a new world of processes, which is the unit of replication.

    ``attempt`` is 0, or 1 for the new set of launches that confirms a FAIL. ``foreign_load`` is the
    share of the ranks' cores that other processes used during the launch.

    ``turn`` counts passes over the plan's arms: launches of one turn form a pair. ``consumed`` is
    the number of distinct samples that the world trained on in the kept window. ``losses`` is a
    digest of every step's loss, and ``compared`` the number of losses that were compared with the
    reference. ``wall_s`` is the time from the command to the end of the last rank. ``agent``
    identifies the process that forked the ranks. ``wrong`` lists deviations from the request that
    the parent found (world, samples, bytes); a launch with any is never judged. ``accepted`` lists
    the deviations that the user of a script accepts. A profiled launch has a ``budget``. Its
    ``perturbation`` is the ratio of its profiled steps to its other steps, with the lower end
    ``perturbation_low`` if there is an interval.

    ``reached`` is None if the plan has no target loss, or if the launch did not reach it.
    ``final_loss`` is the mean loss of the last steps, for plans with a target.

    ``hosts`` are the numbers of the nodes that it ran on (empty = the first ones). Launches of one
    ``slot`` ran concurrently on separate ``devices``, given as the first device on every host.
    ``behind`` names the timed launch whose following steps, in the same world, this profile covers.
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
    slot: str = ""
    behind: str = ""
    hosts: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    reached: Reached | None = None
    final_loss: float | None = None
    intended: Purpose | None = None

    @property
    def asked(self) -> Purpose:
        """The purpose for which it was launched, also if it stalled or failed temporarily."""
        if self.purpose in (Purpose.STALLED, Purpose.FLAKED):
            return self.intended or Purpose.TIMED
        return self.purpose

    @property
    def stood_still(self) -> bool:
        """Whether the only deviation is that the host made it miss its schedule."""
        return bool(self.wrong) and all(word.startswith(STOOD_STILL) for word in self.wrong)

    @property
    def discarded(self) -> bool:
        """Whether the launch is ignored and does not stop the run."""
        stalled = self.stood_still and self.purpose in (Purpose.PILOT, Purpose.STALLED)
        return stalled or self.purpose is Purpose.FLAKED

    @property
    def passing(self) -> bool:
        """Whether it failed for a reason that may be temporary."""
        failed = self.status is LaunchStatus.FAILED and self.cause is not None
        return failed and self.cause is not None and self.cause.kind in PASSING

    @property
    def lost(self) -> bool:
        """Whether a node was lost during the launch, which says nothing about the case."""
        return self.passing and self.cause is not None and self.cause.kind == "node"

    @property
    def usable(self) -> bool:
        """Whether it ended normally and ran as requested."""
        return self.status is LaunchStatus.OK and not self.wrong

    @property
    def changed(self) -> float:
        """The factor by which the profiler certainly lengthened its steps; 1 if unknown."""
        return self.perturbation_low or self.perturbation or 1.0

    @property
    def throughput(self) -> float | None:
        """The samples that were consumed / wall time of the kept window of the slowest rank, in
        samples/s.
        """
        return (
            None
            if self.steps is None
            else self.consumed / max(rank.window_s for rank in self.ranks)
        )

    @property
    def tail_throughput(self) -> float | None:
        """The samples of a mean step / 95th percentile of step time, in samples/s."""
        if self.steps is None:
            return None
        return self.consumed / self.steps.count / self.steps.p95_s

    @property
    def denied(self) -> float | None:
        """The share of the ranks' cores that they could not use, because of other processes or of a
        quota.

        None if neither is known.
        """
        if self.foreign_load is None and self.throttled is None:
            return None
        return (self.foreign_load or 0.0) + (self.throttled or 0.0)

    @property
    def throttled(self) -> float | None:
        """The share of the window for which a CPU quota stopped the most affected rank; None if
        unknown.
        """
        shares = [
            rank.throttled_s / rank.window_s
            for rank in self.ranks
            if rank.throttled_s is not None and rank.window_s
        ]
        return max(shares, default=None)

    @property
    def late(self) -> float | None:
        """The share of its window by which a simulated launch exceeded its schedule; None for other
        launches.
        """
        planted = [rank.planted_s for rank in self.ranks if rank.planted_s]
        if self.steps is None or not planted or len(planted) < len(self.ranks):
            return None
        planned_s = self.steps.count * max(planted)
        behind = max(0.0, max(rank.window_s for rank in self.ranks) / planned_s - 1)
        return behind / (1 + behind)

    @property
    def peak_bytes(self) -> float | None:
        """The peak memory of the largest rank in bytes; None if a rank does not report it."""
        peaks = [rank.peak_bytes for rank in self.ranks if rank.peak_bytes is not None]
        known = self.steps is not None and len(peaks) == len(self.ranks)
        return float(max(peaks)) if known else None

    @property
    def reserved_bytes(self) -> float | None:
        """The peak memory that the allocator of the largest rank reserved on its device; None on
        CPUs.
        """
        peaks = [rank.allocator.reserved_bytes for rank in self.ranks if rank.allocator is not None]
        known = self.steps is not None and len(peaks) == len(self.ranks)
        return float(max(peaks)) if known else None

    @property
    def sent_bytes(self) -> float | None:
        """The mean bytes per step that the busiest rank sent; None if sockets do not carry the
        traffic.
        """
        sent = [rank.sent_bytes for rank in self.ranks if rank.sent_bytes is not None]
        known = self.steps is not None and len(sent) == len(self.ranks)
        return max(sent) / self.steps.count if known and self.steps else None

    @property
    def skipped_steps(self) -> float | None:
        """The steps that the gradient scaler skipped, including warm-up; None without a scaler."""
        counts = [len(rank.ran.skipped) for rank in self.ranks if rank.ran.skipped is not None]
        return float(max(counts)) if self.steps is not None and counts else None

    @property
    def staleness(self) -> float | None:
        """The largest number of steps by which the slowest rank lagged behind another rank.

        None if all ranks step together.
        """
        steps = [rank.ran.staleness for rank in self.ranks if rank.ran.staleness is not None]
        return float(max(steps)) if self.steps is not None and steps else None

    @property
    def fed(self) -> Mapping[str, float] | None:
        """The work of making batches in a step, as a mean over ranks; None for inputs that do not
        report it.

        ``read_s`` and ``decode_s`` are times of all workers of a rank, ``disk_bytes`` the bytes
        from disks.
        """
        medians = [rank.ran.fed for rank in self.ranks if rank.ran.fed]
        return (
            {key: fmean(median[key] for median in medians) for key in medians[0]}
            if medians
            else None
        )

    @property
    def compile_s(self) -> float | None:
        """The seconds for which the slowest rank compiled, all before the window."""
        return max((rank.ran.compile_s for rank in self.ranks if rank.ran.compile_s), default=None)

    @property
    def codec_s(self) -> tuple[float, float] | None:
        """The seconds per step that the slowest rank spends (encoding and adding, decoding)."""
        parts = [rank.ran.codec_s for rank in self.ranks if rank.ran.codec_s]
        if not parts:
            return None
        encoding = max(part.get("encode", 0.0) + part.get("add", 0.0) for part in parts)
        return encoding, max(part.get("decode", 0.0) for part in parts)

    @property
    def expert_variation(self) -> float | None:
        """The standard deviation of the experts' loads over their mean, in the most uneven
        layer.
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
        """The energy of the devices in the kept window per sample, J; None if a device does not
        report it.

        Older records have only the devices of one node, so their launches on several nodes have no
        value.
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

    def _at(self, path: str) -> float | None:
        """Return the value at the end of a path of attributes; None if one of them is None."""
        value: Any = self
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return value  # type: ignore[no-any-return]


def loads(ranks: Iterable[RankRecord]) -> Mapping[str, tuple[int, ...]]:
    """Return the number of tokens assigned to each expert by layer, over all ranks."""
    by_layer: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for layer, routed in (rank.routed or {}).items():
            before = by_layer.get(layer, (0,) * len(routed.asked))
            by_layer[layer] = tuple(a + b for a, b in zip(before, routed.asked, strict=True))
    return by_layer


def num_again(launches: Iterable[LaunchRecord], purpose: Purpose) -> int:
    """Return how often launches were repeated for this purpose, ``STALLED`` or ``FLAKED``."""
    return len({launch.slot or launch.launch for launch in launches if launch.purpose is purpose})
