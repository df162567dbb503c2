"""The record of a run: what every verb reads, and nothing else.

All that a verdict rests on is in it and in the ranks' samples (``harness.store`` has both on disk);
``verify`` recomputes it from them without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.admission import Finding
from harness.budget import Budget
from harness.fabric import Row
from harness.machine import Machine
from harness.nvml import GpuWindow
from harness.outcome import Verdict
from harness.ranges import Category
from harness.recovery import Trial
from harness.spec import Plan, Window
from harness.steadiness import Steadiness
from harness.thresholds import Threshold

SCHEMA = 4
#: The first layout whose verdicts were judged by today's rules.
JUDGED_SINCE = 3


class LaunchStatus(StrEnum):
    """How a launch ended."""

    OK = "ok"
    FAILED = "failed"


class Purpose(StrEnum):
    """What a launch was for: only ``timed`` ones are compared, budgets come from ``profile``."""

    GATE = "gate"
    PILOT = "pilot"
    TIMED = "timed"
    PROFILE = "profile"
    FABRIC = "fabric"
    RECOVERY = "recovery"


@dataclass(frozen=True, kw_only=True)
class WhatRan:
    """What a strategy observed of itself: classes and placements, never what was asked for.

    ``module`` is the class of the trained module, ``placements`` those of its parameters;
    ``compute_dtype`` is the dtype that leaf modules really returned.
    """

    module: str
    placements: tuple[str, ...] = ()
    schedule: str = ""
    compressor: str = ""
    compute_dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Closed-form facts of a model at a size. FLOPs count forward and backward of one sample."""

    num_params: int
    flops_per_sample: float
    tokens_per_sample: int
    activation_bytes_per_sample: int
    input_shape: tuple[int, ...]
    input_dtype: str


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a strategy says a case will do, before it runs. Bytes are per rank and step.

    ``sent_bytes`` is the closed form for the case's backend, one figure per rank.
    ``payload_bytes`` maps a collective to the input bytes that each rank issues in one step (one
    figure per rank); ``largest_message`` is the largest single one.
    ``dense_bytes`` is what an uncompressed all-reduce would send, 0 where that is no measure.
    ``module``, ``schedule`` and ``placements`` must be what ran (placements () = not asserted).
    ``memory_bytes`` is what a rank will need, roughly.
    """

    sent_bytes: tuple[float, ...]
    payload_bytes: Mapping[str, tuple[float, ...]]
    largest_message: float
    module: str
    ideal_efficiency: float
    dense_bytes: float = 0.0
    placements: tuple[str, ...] = ()
    schedule: str = ""
    memory_bytes: int
    formula: str
    global_batch: int


@dataclass(frozen=True, kw_only=True)
class Described:
    """The answer to ``describe``: facts and expectations, or why there are none.

    ``unsupported`` is what the case's files refuse (SKIP); ``error`` that they broke (ERROR).
    """

    facts: ModelFacts | None = None
    expected: Expected | None = None
    unsupported: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of the correctness gate, with its number beside its limit."""

    name: str
    ok: bool
    value: float | None = None
    limit: float | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Issued:
    """Collectives of one kind that a rank issued in one step; payload is this rank's input."""

    count: int
    payload_bytes: int


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """The device allocator's peaks in bytes over the kept window, and how often it had to retry.

    ``reserved_bytes - allocated_bytes`` is what fragmentation and caching hold back.
    """

    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    num_retries: int


@dataclass(frozen=True, kw_only=True)
class SpanRow:
    """One span of a profiled window; ns of the rank's own clock."""

    name: str
    category: Category
    payload: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank measured. Times in s on its own monotonic clock, sizes in bytes.

    ``step_s`` etc. are not here: they are in the samples (``rank<r>.npz``: marks_s, loss,
    sample_ids, rss_bytes), whose digest is ``samples_sha256``. ``sent_bytes`` and
    ``resent_bytes`` cover the kept window, None where sockets do not carry the traffic; so does
    ``busy_s``, the CPU seconds that the cores of ``affinity`` worked for anyone. ``phases_s`` says
    where the rank's time before its first step went.

    Of profiled launches: ``clock_offset_ns`` is this rank's clock less rank 0's, known to
    ``clock_half_ns``; ``trace_sha256`` is the digest of ``rank<r>.trace.json.gz``.
    """

    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    device: str
    backend: str
    window_s: float
    cpu_s: float
    setup_s: float
    stepping_s: float
    sent_bytes: int | None
    resent_bytes: int | None
    peak_bytes: int | None
    first_loss: float | None
    last_loss: float | None
    tuned_threads: int
    affinity: tuple[int, ...]
    modules_after_fork: tuple[str, ...]
    clock_misses: int
    planted_s: float | None
    ran: WhatRan
    issued: Mapping[str, Issued] = field(default_factory=dict)
    grad_norm: float | None = None
    checks: tuple[Check, ...] = ()
    samples_sha256: str = ""
    busy_s: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    allocator: Allocator | None = None
    clock_offset_ns: int = 0
    clock_half_ns: int | None = None
    trace_sha256: str = ""


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
class LaunchRecord:
    """One launch of one arm: a fresh world of processes, the unit of replication.

    ``attempt`` is 0, or 1 for the fresh set that confirms a FAIL; ``foreign_load`` the share of
    the ranks' cores that others used meanwhile.

    ``turn`` counts passes over the plan's arms: launches of one turn form a pair. ``consumed`` is
    the number of distinct samples that the world trained on in the kept window, ``losses`` a
    digest of every step's loss. ``wall_s`` is from the command to the last rank's end, ``agent``
    identifies the process that forked the ranks. ``wrong`` lists what the parent found not to be
    as asked (world, samples, bytes): such a launch is never judged. A profiled launch has a
    ``budget``, and in ``perturbation`` the ratio of its profiled steps to its others (medians).
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
    gpus: tuple[GpuWindow, ...] = ()
    attempt: int = 0
    steadiness: Steadiness | None = None
    foreign_load: float | None = None
    budget: Budget | None = None
    perturbation: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run: everything that ``report``, ``verify``, ``compare`` and the history read.

    ``windows`` maps plan hash and arm to the steps and cut that its pilots settled. ``admission``
    is what was found of the host before, ``launch_sd`` the deviation between like pilots.
    ``out_of_time`` lists plans that the time budget cut, ``offered`` all that could have been run.
    ``nodes`` are the machines of an engine that reaches others; ``machine`` is then the first.
    ``fabric`` is how fast the ranks exchange data, before anything is trained; ``recoveries`` are
    faults that were planted, and what came after them.
    """

    schema: int
    run: str
    started_at: str
    complete: bool
    machine: Machine
    software: Mapping[str, str]
    settings: Mapping[str, str]
    environment: Mapping[str, str]
    plans: tuple[Plan, ...]
    described: Mapping[str, Described]
    launches: tuple[LaunchRecord, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    windows: Mapping[str, Mapping[str, Window]] = field(default_factory=dict)
    admission: tuple[Finding, ...] = ()
    launch_sd: float | None = None
    out_of_time: tuple[str, ...] = ()
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: tuple[Machine, ...] = ()
    fabric: tuple[Row, ...] = ()
    recoveries: tuple[Trial, ...] = ()

    def window(self, plan: Plan, launch: LaunchRecord) -> Window:
        """What a launch was asked to run: the frozen window of its arm, a pilot's before that."""
        if launch.purpose is Purpose.PROFILE:
            return plan.profile
        frozen = self.windows.get(plan.hash, {}).get(launch.arm)
        return frozen if frozen and launch.purpose is Purpose.TIMED else plan.pilot
