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

#: How what is wrong with a launch begins where a scheduled stand-in missed its deadlines.
STOOD_STILL = "slot too short"
#: So many times launches of a plan are timed again because of that, with those beside them.
STALLS = 2
#: What the slot of profiles behind a window ends with.
BEHIND = "-behind"
#: How a launch may end by what passes: a node or a rank that is gone, or silence. Not by an
#: exception, an exit, want of memory, or collectives that differ: those come again.
PASSING = frozenset({"node", "signal", "hang", "late", "peer"})
#: So many times a plan's launches may end so, and are launched once more.
FLAKES = 1


class LaunchStatus(StrEnum):
    OK = "ok"
    FAILED = "failed"


class Purpose(StrEnum):
    """The purpose of a launch: only ``timed`` ones are compared, budgets come from ``profile``.

    ``probe`` ones run a baseline alone and beside others. ``stalled`` ones were timed, but the host
    stood still while a scheduled stand-in waited: that says nothing of it, and it is timed again,
    with those beside it. ``flaked`` ones ended by what passes, and were launched once more: their
    ``intended`` says what for. A
    ``round`` is one of two nodes, to find those that are slow. ``bits`` compares what ranks compute
    of the same micro-batches.
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


#: Launches of a plan that are repeated after a flake: those that the others wait for.
REPEATED = (
    Purpose.GATE, Purpose.PILOT, Purpose.PROBE, Purpose.TIMED, Purpose.PROFILE, Purpose.REFERENCE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """A launch's kept window: ``drift`` = log of its later half's mean step over its earlier's.

    ``t`` is that over its standard error, from means of 5 steps; None where the window is too
    short to tell. ``mser`` is what MSER-5 would have cut on top. ``steady`` is its own view.
    """

    drift: float
    t: float | None
    mser: int
    steady: bool


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Which rank ended a launch and why. ``sure`` is about the rank, not the reason.

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
    """Kept steps of a launch; each iteration counts as its slowest rank's. Seconds."""

    count: int
    mean_s: float
    median_s: float
    p95_s: float
    worst_s: float


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """Steps of the kept window that took several times the median: their numbers in the launch,
    and the ``share`` of the window that they took beyond it.
    """

    steps: tuple[int, ...]
    share: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Memory growth in bytes per step (least squares) of the fastest-growing rank, 95 % interval.

    ``steady`` is the share of steps that grew: a leak grows at most of them, an allocator that
    settles at few.
    """

    rank: int
    steady: float
    slope: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """When the mean loss of some steps had come to where the plan asked: after how many steps, how
    many samples, and s since training began.
    """

    steps: int
    samples: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """One launch of one arm: a fresh world of processes, the unit of replication.

    ``attempt`` is 0, or 1 for the fresh set that confirms a FAIL; ``foreign_load`` the share of
    the ranks' cores that others used meanwhile.

    ``turn`` counts passes over the plan's arms: launches of one turn form a pair. ``consumed`` is
    the number of distinct samples that the world trained on in the kept window, ``losses`` a
    digest of every step's loss, ``compared`` how many of them were compared with the reference's.
    ``wall_s`` is from the command to the last rank's end, ``agent``
    identifies the process that forked the ranks. ``wrong`` lists what the parent found not to be
    as asked (world, samples, bytes): such a launch is never judged. ``accepted`` lists what a
    script's user answers for. A profiled launch has a ``budget``, and in ``perturbation`` the ratio
    of its profiled steps to its others, which is ``perturbation_low`` at least where there is an
    interval.

    ``reached`` is None where the plan asks for no loss, or it was not reached; ``final_loss`` is
    the mean of the last steps', of plans that ask for one.

    ``hosts`` are the nodes that it ran on, by number (empty = the first ones). Launches of one
    ``slot`` ran at once, each on ``devices`` of its own: the first one on every host. A profile is
    of the steps ``behind`` the window of a timed launch, in the same world.
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
        """The purpose that it was launched for, whatever became of it."""
        if self.purpose in (Purpose.STALLED, Purpose.FLAKED):
            return self.intended or Purpose.TIMED
        return self.purpose

    @property
    def stood_still(self) -> bool:
        """Whether nothing is wrong with it but that the host let it miss its schedule."""
        return bool(self.wrong) and all(word.startswith(STOOD_STILL) for word in self.wrong)

    @property
    def discarded(self) -> bool:
        """Whether it counts for nothing, and keeps nobody from going on."""
        stalled = self.stood_still and self.purpose in (Purpose.PILOT, Purpose.STALLED)
        return stalled or self.purpose is Purpose.FLAKED

    @property
    def passing(self) -> bool:
        """Whether it ended by what may not come again."""
        failed = self.status is LaunchStatus.FAILED and self.cause is not None
        return failed and self.cause is not None and self.cause.kind in PASSING

    @property
    def lost(self) -> bool:
        """Whether a node was lost under it, which says nothing of what it ran."""
        return self.passing and self.cause is not None and self.cause.kind == "node"

    @property
    def usable(self) -> bool:
        """Whether it ended well and ran what was asked for."""
        return self.status is LaunchStatus.OK and not self.wrong

    @property
    def changed(self) -> float:
        """By which factor its profiler certainly lengthened its steps; 1 where unknown."""
        return self.perturbation_low or self.perturbation or 1.0

    @property
    def throughput(self) -> float | None:
        """Samples really consumed / wall time of the kept window of the slowest rank."""
        return (
            None
            if self.steps is None
            else self.consumed / max(rank.window_s for rank in self.ranks)
        )

    @property
    def tail_throughput(self) -> float | None:
        """Samples of a mean step / 95th percentile of step time."""
        if self.steps is None:
            return None
        return self.consumed / self.steps.count / self.steps.p95_s

    @property
    def denied(self) -> float | None:
        """Share of the ranks' cores that they did not get: used by others, or held back by a quota.

        None where neither is known.
        """
        if self.foreign_load is None and self.throttled is None:
            return None
        return (self.foreign_load or 0.0) + (self.throttled or 0.0)

    @property
    def throttled(self) -> float | None:
        """The share of its window for which a CPU quota held back the rank that it held back most;
        None where no rank knows.
        """
        shares = [
            rank.throttled_s / rank.window_s
            for rank in self.ranks
            if rank.throttled_s is not None and rank.window_s
        ]
        return max(shares, default=None)

    @property
    def late(self) -> float | None:
        """The share of its window by which a scheduled stand-in missed its end; None of others."""
        planted = [rank.planted_s for rank in self.ranks if rank.planted_s]
        if self.steps is None or not planted or len(planted) < len(self.ranks):
            return None
        planned_s = self.steps.count * max(planted)
        behind = max(0.0, max(rank.window_s for rank in self.ranks) / planned_s - 1)
        return behind / (1 + behind)

    @property
    def peak_bytes(self) -> float | None:
        """Peak memory of the largest rank; None if a rank does not know its own."""
        peaks = [rank.peak_bytes for rank in self.ranks if rank.peak_bytes is not None]
        known = self.steps is not None and len(peaks) == len(self.ranks)
        return float(max(peaks)) if known else None

    @property
    def reserved_bytes(self) -> float | None:
        """Peak of what the allocator of the largest rank took of its device, used or not; None on
        cores.
        """
        peaks = [rank.allocator.reserved_bytes for rank in self.ranks if rank.allocator is not None]
        known = self.steps is not None and len(peaks) == len(self.ranks)
        return float(max(peaks)) if known else None

    @property
    def sent_bytes(self) -> float | None:
        """Bytes that the busiest rank sent in a mean step; None where sockets do not carry them."""
        sent = [rank.sent_bytes for rank in self.ranks if rank.sent_bytes is not None]
        known = self.steps is not None and len(sent) == len(self.ranks)
        return max(sent) / self.steps.count if known and self.steps else None

    @property
    def skipped_steps(self) -> float | None:
        """Steps that a scaler of losses left out, warm-up included; None without one."""
        counts = [len(rank.ran.skipped) for rank in self.ranks if rank.ran.skipped is not None]
        return float(max(counts)) if self.steps is not None and counts else None

    @property
    def staleness(self) -> float | None:
        """Steps that the slowest rank was behind what a step was trained on, at most; None where
        all ranks step together.
        """
        steps = [rank.ran.staleness for rank in self.ranks if rank.ran.staleness is not None]
        return float(max(steps)) if self.steps is not None and steps else None

    @property
    def fed(self) -> Mapping[str, float] | None:
        """The time that making batches took in a step, mean of the ranks; None for inputs that do
        not say.

        ``read_s`` and ``decode_s`` of all workers of a rank, ``disk_bytes`` that disks delivered.
        """
        medians = [rank.ran.fed for rank in self.ranks if rank.ran.fed]
        return (
            {key: fmean(median[key] for median in medians) for key in medians[0]}
            if medians
            else None
        )

    @property
    def compile_s(self) -> float | None:
        """Seconds for which the slowest rank compiled, none of them in the window."""
        return max((rank.ran.compile_s for rank in self.ranks if rank.ran.compile_s), default=None)

    @property
    def codec_s(self) -> tuple[float, float] | None:
        """Seconds that encoding (and adding), and decoding, take the slowest rank in a step."""
        parts = [rank.ran.codec_s for rank in self.ranks if rank.ran.codec_s]
        if not parts:
            return None
        encoding = max(part.get("encode", 0.0) + part.get("add", 0.0) for part in parts)
        return encoding, max(part.get("decode", 0.0) for part in parts)

    @property
    def expert_variation(self) -> float | None:
        """Standard deviation of experts' loads over their mean, in the most uneven layer."""
        by_layer = loads(self.ranks).values()
        return max((pstdev(load) / fmean(load) for load in by_layer), default=None)

    @property
    def dropped_share(self) -> float | None:
        """Choices that found no room at their expert, of all."""
        layers = [routed for rank in self.ranks for routed in (rank.routed or {}).values()]
        asked = sum(sum(routed.asked) for routed in layers)
        return sum(routed.dropped for routed in layers) / asked if asked else None

    @property
    def energy_per_sample(self) -> float | None:
        """The energy of its devices in the kept window for each sample, J; None where one does not
        say.

        Records of before know the devices of one node alone: there a launch on several has none.
        """
        taken = [gpu.energy_j for gpu in self.gpus if gpu.energy_j is not None]
        everywhere = {gpu.node for gpu in self.gpus} == {rank.node for rank in self.ranks}
        known = len(taken) == len(self.gpus) > 0 and everywhere
        return sum(taken) / self.consumed if known and self.consumed else None

    def value(self, metric: Metric, *, tail: bool = False) -> float | None:
        """The value of a metric in this launch, in SI units; None where it was not measured."""
        path = (metric.tail if tail else "") or metric.read
        values = [self._at(part) for part in path.split("/")] if path else [None]
        top, *below = values
        if not below or top is None:
            return top
        return top / below[0] if below[0] else None

    def _at(self, path: str) -> float | None:
        """The value at the end of a path of attributes; None as soon as one of them is None."""
        value: Any = self
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return value  # type: ignore[no-any-return]


def loads(ranks: Iterable[RankRecord]) -> Mapping[str, tuple[int, ...]]:
    """Choices of each expert by layer, over all ranks; layers that nobody asked are left out."""
    by_layer: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for layer, routed in (rank.routed or {}).items():
            before = by_layer.get(layer, (0,) * len(routed.asked))
            by_layer[layer] = tuple(a + b for a, b in zip(before, routed.asked, strict=True))
    return by_layer


def num_again(launches: Iterable[LaunchRecord], purpose: Purpose) -> int:
    """How often some of these were launched again: ``STALLED`` or ``FLAKED``."""
    return len({launch.slot or launch.launch for launch in launches if launch.purpose is purpose})
