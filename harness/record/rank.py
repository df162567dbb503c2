"""The record of one rank in one launch: its measurements and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.record.spans import Category


@dataclass(frozen=True, kw_only=True)
class ExecutedModel:
    """The model that really ran, as the strategy observed it. It never repeats what was requested.

    ``module`` is the class of the trained module, ``placements`` are those of its parameters, and
    ``compute_dtype`` is the dtype that leaf modules returned. ``staleness`` is the largest number
    of steps by which the slowest rank lagged behind another rank.
    ``codec_s`` are the times of the parts of a compressor in a median step. ``skipped`` are the
    steps that the gradient scaler skipped. ``recompiled``: blocks were also compiled in the kept
    window. ``compile_s`` is the compile time before it. ``fed`` is the work of an input for a
    median step, by name.
    """

    module: str
    placements: tuple[str, ...] = ()
    schedule: str = ""
    compressor: str = ""
    compute_dtype: str = ""
    staleness: int | None = None
    codec_s: Mapping[str, float] | None = None
    skipped: tuple[int, ...] | None = None
    recompiled: bool = False
    compile_s: float | None = None
    fed: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One correctness check, with its value and its limit.

    The limit is the largest permitted value, or the smallest one if ``at_least`` is set.
    """

    name: str
    ok: bool
    value: float | None = None
    limit: float | None = None
    detail: str = ""
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class CollectiveCount:
    """The collectives of one kind that a rank issued in one step; payload is the input of this
    rank.
    """

    count: int
    payload_bytes: int


#: Upper limit of the bytes that gloo adds to a collective for each other rank: 72 for each of the 8
#: messages of an all-reduce.
GLOO_HEADERS = 576


def headers(issued: Mapping[str, CollectiveCount], world_size: int) -> int:
    """Return the upper limit of the bytes that gloo adds to the traffic of a rank in one step."""
    return GLOO_HEADERS * sum(kind.count for kind in issued.values()) * (world_size - 1)


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """The peaks of the device allocator in bytes over the kept window, and its number of retries.

    ``reserved_bytes - allocated_bytes`` is the memory held by fragmentation and caching.
    """

    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    num_retries: int


@dataclass(frozen=True, kw_only=True)
class Routed:
    """The assignments of one rank's tokens to the experts of a layer.

    ``asked`` counts them by expert, ``top`` is the number of experts per token, ``dropped`` counts
    those that exceeded an expert's capacity.
    """

    asked: tuple[int, ...]
    dropped: int
    top: int


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The measured peak rates of a rank's device.

    ``matmul_flops`` is that of a matrix product in FLOP/s, ``copy_bps`` that of a copy in its
    memory in B/s (each byte counts as read and as written).
    """

    dtype: str
    matmul_flops: float
    copy_bps: float


@dataclass(frozen=True, kw_only=True)
class SpanRow:
    """One span of a profiled window, in ns of the rank's clock."""

    name: str
    category: Category
    payload: int
    start_ns: int
    end_ns: int


#: The text that follows in ``Watched.sampler`` if only a part of a data set is shared out.
PART = ", of samples "


@dataclass(frozen=True, kw_only=True)
class ScriptObservations:
    """The observations of a user's training by hooks in one rank. Counts are per step.

    ``world_size`` and ``backend`` are those of the process group that it created (1 and empty
    without one). ``optimizers`` are the classes that step together, in their order within a step,
    and ``backwards`` is the number of backward passes of the last step. ``unusual`` steps of the
    window have another number of backward passes than most; ``passes`` is a digest of all these
    numbers. ``regular``: every kept step had the same optimizers. ``even``: every kept step
    exchanged the same number of bytes, apart from collectives of a few values. ``roots`` are the
    modules that the training calls, with the number of rows that reached each one in the last step.
    ``start`` is a digest of the parameters before the first step; of this rank's part of them if
    they are ``sharded``. ``first`` is the sum of the hashes of the samples before the first update.
    ``collectives`` are those of the last step, ``small`` is the number of them that carry single
    values, and ``reads`` is how often a step of the warm-up reads one (``Tensor.item``).
    ``repeated``: a sampler shuffled two epochs identically. ``seeded``: ``torch.manual_seed`` was
    called before a model was created, last with ``seed``. ``source`` is a digest of the script's
    file, ``way`` how its process was started. ``flops`` are those of the step after the window (0:
    not counted, or the batch was short), ``aside`` the part of them that no gradient depends on.
    ``distinct`` is the share of a step's rows that differ from all other rows of this rank.
    ``ragged``: rows of some batches are larger than those of others.

    ``drawn`` is the number of samples that loaders returned for a step (median; 0: unknown).
    ``as_drawn``: at least a quarter of the steps had as many rows as samples. ``usual`` is the
    number of rows of a median step over that of a mean step, ``spread`` their standard deviation
    over the mean. ``skips``: some steps have more forward passes than others. ``saved`` are the
    files that ``torch.save`` wrote. ``whole`` is the size of the data set if the loader of this
    rank draws all of it alone (0: a part, or unknown). ``stored`` is a digest of the stored data of
    some samples (empty: nothing). ``unclear`` is the reason if the rows that reached the model
    cannot be identified as samples. ``evaluations`` are forward passes without training in the
    window, ``acted`` those before it. ``silent`` is the number of steps in the window that exchange
    nothing although others do. ``in_eval``: weights were updated after passes in eval mode only.
    ``searched``: DDP searched for unused parameters and there were none. ``random``: the first
    forward pass drew random numbers, as dropout does. ``parallel``: ranks are replicas, or shards
    of one, and share the data. ``ahead_s`` is the host time of a median step up to its backward
    passes: batches, logs and forward passes, before ranks wait for each other (0: unknown).

    ``trained_bytes`` are those of the parameters that get gradients (0: not distinguished).
    ``workers`` is the number of processes of the loader with the most batches. ``again`` is the
    share of a step's samples that the previous step also had. ``idle`` is the share of the examined
    updates that left the examined elements of their parameters unchanged. ``cut``: the parameters
    count as ``sharded`` only because ranks exchange data within a forward pass. ``cleared``:
    gradients are cleared between the backward passes of one update (SAM, LBFGS), so that each pass
    exchanges separate gradients. ``uncleared``: gradients of the previous update still existed at
    the start of one. ``twice``: an optimizer stepped twice without a backward pass in between.
    ``unstepped`` are modules with gradients that no optimizer has. ``unchanged``: no parameter of
    this rank changed by any bit between the first step and the last. ``reduced`` are the bytes that
    forward passes of the last step all-reduced. ``began`` and ``ended`` are short digests of the
    parameters before the first and after the last step, one for each of the ``modules``, whose
    names only the first rank of each node has. ``sums_before`` and ``sums_after`` are sums of some
    of their elements with random signs. They show whether differences between ranks are due to
    rounding. ``rates`` are the learning rates at the end, ``exchanging`` the roots whose forward
    passes exchange more than single values. ``sampler`` describes how a DistributedSampler of the
    main loader shares out samples, which must be the same on all ranks (empty: there is none).
    ``bursts_s`` is the time by which a mean step exceeds a median one up to its backward passes,
    caused by work that only some steps do. ``loose`` are short digests, after the last step, of
    parameters that get gradients and are updated but belong to no root.
    """

    world_size: int
    backend: str
    optimizers: tuple[str, ...]
    backwards: int
    regular: bool
    even: bool
    roots: Mapping[str, int]
    start: str
    first: str
    sharded: bool
    parameter_bytes: int
    collectives: Mapping[str, CollectiveCount]
    small: int = 0
    reads: float = 0.0
    repeated: bool = False
    source: str = ""
    way: str = "forked"
    flops: float = 0.0
    aside: float = 0.0
    distinct: float = 1.0
    seeded: bool = True
    seed: str = ""
    drawn: float = 0.0
    as_drawn: bool = False
    usual: float = 1.0
    spread: float = 0.0
    unusual: int = 0
    passes: str = ""
    skips: bool = False
    saved: tuple[str, ...] = ()
    ragged: bool = False
    whole: int = 0
    stored: str = ""
    unclear: str = ""
    evaluations: int = 0
    acted: int = 0
    silent: int = 0
    in_eval: bool = False
    searched: bool = False
    random: bool = False
    parallel: bool = False
    ahead_s: float = 0.0
    trained_bytes: int = 0
    workers: int = 0
    again: float = 0.0
    idle: float = 0.0
    cut: bool = False
    cleared: bool = False
    uncleared: bool = False
    twice: bool = False
    unstepped: tuple[str, ...] = ()
    reduced: int = 0
    modules: tuple[str, ...] = ()
    began: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    sampler: str = ""
    bursts_s: float = 0.0
    loose: tuple[str, ...] = ()
    sums_before: tuple[float, ...] = ()
    sums_after: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    exchanging: tuple[str, ...] = ()
    unchanged: bool = False


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """The measurements of one rank. Times are in s on the rank's monotonic clock, sizes in bytes.

    The times of single steps are not here but in the samples (``rank<r>.npz``: marks_s, loss,
    sample_ids, rss_bytes), whose digest is ``samples_sha256``. ``sent_bytes`` and ``resent_bytes``
    cover the kept window; they are None if sockets do not carry the traffic. These fields cover it
    as well: ``busy_s`` is the CPU time that the cores of ``affinity`` worked for any process,
    ``throttled_s`` the time for which a quota stopped the rank's group, ``waited_s`` the time for
    which its threads were ready but waited for a core (all added up). ``kernel_s`` is the length of
    the kept window by the kernel's timestamps, ``window_ns`` its start and end by the wall clock.

    If sockets are counted, ``written_bytes`` are all bytes that write calls carried in the window,
    except repeated prints, and ``shared`` names writable memory that was shared with other
    processes. ``phases_s`` is the time before the first step by phase. ``replica`` is a digest of
    the parameters after the last step, which must be equal on all ranks with this ``part`` of the
    model. ``squares``, of references, are the mean squares of this rank's gradient and of the mean
    gradient of all ranks, for each part of the training. ``ceiling`` has the peak rates of the
    device, measured by correctness checks on one rank. ``device_uuid`` identifies a GPU; it is
    empty on CPUs. ``sources`` are digests by path of the loaded user's files, a digest of this
    package, and versions; only the first rank of each node has them.

    Profiled launches have ``clock_offset_ns``, the rank's clock minus that of rank 0, with the
    error bound ``clock_half_ns``, and ``trace_sha256``, the digest of ``rank<r>.trace.json.gz``. A
    user's script has ``watched``.
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
    ran: ExecutedModel
    issued: Mapping[str, CollectiveCount] = field(default_factory=dict)
    grad_norm: float | None = None
    checks: tuple[Check, ...] = ()
    samples_sha256: str = ""
    busy_s: float | None = None
    replica: str = ""
    part: int = 0
    throttled_s: float | None = None
    waited_s: float | None = None
    kernel_s: float | None = None
    written_bytes: int | None = None
    shared: tuple[str, ...] = ()
    phases_s: Mapping[str, float] = field(default_factory=dict)
    allocator: Allocator | None = None
    clock_offset_ns: int = 0
    clock_half_ns: int | None = None
    trace_sha256: str = ""
    window_ns: tuple[int, int] | None = None
    watched: ScriptObservations | None = None
    ceiling: Ceiling | None = None
    routed: Mapping[str, Routed] | None = None
    device_uuid: str = ""
    squares: tuple[tuple[float, float], ...] = ()
    sources: Mapping[str, str] | None = None
