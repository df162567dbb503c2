"""The record of one rank in one launch: its measurements and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.record.anatomy import CalledCollective
from harness.record.spans import Category


@dataclass(frozen=True, kw_only=True)
class ExecutedModel:
    """The model that ran, as the strategy observed it. No field is copied from the request.

    ``module`` is the class of the trained module, ``placements`` are the DTensor placements of its
    parameters, and ``compute_dtype`` is the dtype that leaf modules returned. ``staleness`` is the
    largest number of steps by which one rank lagged behind another. ``codec_s`` are the
    seconds of each part of a compressor in a median step. ``skipped`` are the numbers of the steps
    that the gradient scaler skipped. ``recompiled`` is True if blocks were compiled again within
    the kept window. ``compile_s`` is the compile time before the window, in seconds. ``fed`` is the
    work of producing the batches of a median step, by the name of the quantity.
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


#: The first words of the message of a check that rounding alone may exceed.
UNCHECKED = "not checked"


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
    """The number of collectives of one kind that a rank issued in one step.

    ``payload_bytes`` is the size of this rank's inputs.
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

    ``asked`` has the number of assignments to each expert. ``top`` is the number of experts per
    token. ``dropped`` is the number of assignments that exceeded an expert's capacity.
    """

    asked: tuple[int, ...]
    dropped: int
    top: int


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The measured peak rates of a rank's device.

    ``matmul_flops`` is the rate of a matrix product in FLOP/s. ``copy_bps`` is the rate of a copy
    within the device's memory in B/s; each byte counts twice, because it is read and written.
    """

    dtype: str
    matmul_flops: float
    copy_bps: float


@dataclass(frozen=True, kw_only=True)
class SpanRow:
    """One span (a named time range) of a profiled window, in ns of the rank's clock."""

    name: str
    category: Category
    payload: int
    start_ns: int
    end_ns: int


#: A text in ``ScriptObservations.sampler``. If a sampler distributes only a part of a data set, a
#: description of this part follows the text.
PART = ", of samples "


@dataclass(frozen=True, kw_only=True)
class ScriptObservations:
    """The observations that hooks made in one rank of a user's training. Counts are per step.

    ``world_size`` and ``backend`` describe the process group that the script created (1 and empty
    without one). ``optimizers`` are the classes that step together, in their order within a step.
    ``backwards`` is the number of backward passes of the last step. ``unusual`` is the number of
    steps in the window whose number of backward passes differs from that of most steps; ``passes``
    is a digest of all these numbers. ``regular``: every kept step had the same optimizers.
    ``even``: every kept step exchanged the same number of bytes, apart from collectives of a few
    values. ``roots`` are the modules that the training calls, with the number of rows that reached
    each one in the last step. ``start`` is a digest of the parameters before the first step; if
    they are ``sharded``, it covers only this rank's part. ``first`` is the sum of the hashes of the
    samples before the first update. ``collectives`` are the collectives of the last step, and
    ``small`` is the number of them that carry single values. ``reads`` is how often a warm-up step
    reads a single value (``Tensor.item``). ``repeated``: a sampler shuffled two epochs identically.
    ``seeded``: ``torch.manual_seed`` was called before a model was created; ``seed`` is the last
    value. ``source`` is a digest of the script's file. ``way`` is how its process was started.
    ``flops`` is the number of FLOPs of the step after the window (0: not counted, or the batch was
    short). ``aside`` is the part of these FLOPs that no gradient depends on. ``distinct`` is the
    fraction of a step's rows that differ from all other rows of this rank. ``ragged``: rows of some
    batches are larger than those of other batches.

    ``drawn`` is the number of samples that loaders returned for a median step (0: unknown).
    ``as_drawn``: in more than a quarter of the steps, as many rows reached the model as loaders
    returned samples. ``usual`` is the number of rows in a median step divided by the mean number of
    rows. ``spread`` is the standard deviation of the number of rows divided by its mean. ``skips``:
    some steps have more forward passes than others. ``saved`` are the files that ``torch.save``
    wrote. ``whole`` is the size of the data set if the loader of this rank draws all of it (0: it
    draws a part, or this is unknown). ``stored`` is a digest of the stored data of some samples
    (empty: nothing was examined). ``unclear`` is the reason if the rows that reached the model
    cannot be identified as samples. ``evaluations`` is the number of forward passes without
    training in the window, and ``acted`` is their number before the window. ``silent`` is the
    number of steps in the window that exchanged nothing although other steps did. ``in_eval``:
    weights were updated after passes in eval mode only. ``searched``: DDP searched for unused
    parameters and there were none. ``random``: the first forward pass drew random numbers, as
    dropout does. ``parallel``: ranks are replicas, or shards of one replica, and divide the data
    among them. ``ahead_s`` is the host time in seconds of a median step up to its backward passes,
    before ranks wait for each other: batches, logging and forward passes (0: unknown).

    ``trained_bytes`` is the size of the parameters that get gradients (0: not distinguished).
    ``workers`` is the number of processes of the loader with the most batches. ``again`` is the
    fraction of a step's samples that the previous step also had. ``idle`` is the fraction of the
    examined updates that left the examined elements of their parameters unchanged. ``cut``: the
    parameters count as ``sharded`` only because ranks exchange data within a forward pass.
    ``cleared``: gradients are cleared between the backward passes of one update (SAM, LBFGS), so
    that each pass exchanges separate gradients. ``uncleared``: gradients of the previous update
    still existed when an update began. ``twice``: an optimizer stepped twice without a backward
    pass in between. ``unstepped`` are modules with gradients that belong to no optimizer.
    ``unchanged``: no bit of this rank's parameters changed between the first step and the last.
    ``reduced`` is the number of bytes that forward passes of the last step all-reduced. ``began``
    and ``ended`` are short digests of the parameters before the first and after the last step. They
    have one entry for each of the ``modules``, whose names only the first rank of each node
    records. ``sums_before`` and ``sums_after`` are sums of some of the parameters' elements with
    random signs. They show whether differences between ranks are due to rounding. ``rates`` are the
    learning rates at the end. ``exchanging`` are the roots whose forward passes exchange more than
    single values. ``sampler`` describes how a DistributedSampler of the main loader distributes
    samples over ranks; it must be the same on all ranks (empty: there is none). ``bursts_s`` is the
    time up to the backward passes in a mean step minus that in a median step, in seconds; it shows
    work that only some steps do. ``loose`` are short digests, after the last step, of parameters
    that get gradients and are updated but belong to no root. ``calls`` are the collectives that the
    script calls itself, by the name of the function. ``threads`` and ``cores`` are the numbers of
    threads that torch computes with and of cores that they may use, at the end of the window.
    ``statistics`` are layers that collect statistics of this rank's batches alone (batch norm), and
    ``broadcast``: a wrapper copies the statistics of one rank to all before each forward pass.
    ``buffers`` is a digest of all buffers at the end. ``pass_batches`` is the number of batches in
    the last complete pass over the main loader (0: no pass was complete). ``settings`` are the
    settings with which each optimizer was made. ``modes`` are debugging modes that were switched on
    in backward passes. ``num_updates`` is the number of updates up to the end, at which ``rates``
    are the learning rates. ``rates_at`` are the learning rates at the updates 1, 2, 4, 8 and so on.
    ``mean_targets`` are the numbers of targets behind the losses of the
    first backward passes (empty: these losses are not means over targets, or they are weighted).
    ``clipped_norms`` are the first norms by which this rank clipped its gradients. ``same_passes``:
    two passes over the main loader began with the same batch although its data set has a method
    ``set_epoch``. ``clipped_scaled``: gradients were clipped while a gradient scaler's factor was
    still in them. ``graphs_kept`` is the number of graphs of the first 32 backward passes that are
    in memory at the end. ``without_gradient`` is the number of collectives before backward passes
    whose tensors need gradients, which do not flow through them. ``affinity`` are the cores that
    this rank may use at the end. ``replaced``: a module has other parameters than those that
    DistributedDataParallel exchanges. ``operations`` are the names of the collectives among the
    events in this rank's samples.
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
    calls: Mapping[str, CalledCollective] = field(default_factory=dict)
    threads: int = 0
    cores: int = 0
    statistics: tuple[str, ...] = ()
    broadcast: bool = False
    buffers: str = ""
    pass_batches: int = 0
    settings: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    num_updates: int = 0
    rates_at: tuple[tuple[float, ...], ...] = ()
    mean_targets: tuple[int, ...] = ()
    clipped_norms: tuple[float, ...] = ()
    same_passes: bool = False
    clipped_scaled: bool = False
    graphs_kept: int = 0
    without_gradient: int = 0
    affinity: tuple[int, ...] = ()
    replaced: bool = False
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LateSteps:
    """Steps with a user's files outside the timed window (``training/rank/afterwards.py``).

    ``flops`` counts the matrix products of one step on this rank; those in 16 bits count half.
    ``steps_s`` are the durations of
    steps that follow one another, and ``paused_s`` those of steps after a pause, in s.
    """

    flops: float
    steps_s: tuple[float, ...] = ()
    paused_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """The measurements of one rank. Times are in s on the rank's monotonic clock, sizes in bytes.

    The times of single steps are in the samples (``rank<r>.npz``: marks_s, loss, sample_ids,
    rss_bytes), whose digest is ``samples_sha256``. The following fields cover the kept window.
    ``sent_bytes`` and ``resent_bytes`` are counted at sockets; they are None if the traffic does
    not go through sockets. ``busy_s`` is the CPU time that the cores of ``affinity`` spent on any
    process. ``throttled_s`` is the time for which a quota stopped the rank's control group.
    ``waited_s`` is the time for which its threads were ready but waited for a core, summed over
    threads. ``kernel_s`` is the length of the window by the kernel's timestamps. ``window_ns`` is
    its start and end by the wall clock.

    If sockets are counted, ``written_bytes`` is the number of bytes that write calls carried in the
    window, except repeated prints, and ``shared`` names writable memory that was shared with other
    processes. ``phases_s`` is the duration of each phase before the first step. ``replica`` is a
    digest of the parameters after the last step; it must be equal on all ranks that hold this
    ``part`` of the model. Only references have ``squares``: for each part of the training, the mean
    square of this rank's gradient and that of the mean gradient of all ranks. ``ceiling`` has the
    peak rates of the device, which correctness checks on one rank measure. ``device_uuid``
    identifies a GPU; it is empty on CPUs. ``sources`` has a digest of each loaded file of the user
    by path, a digest of this package, and versions; only the first rank of each node records it.
    ``logged`` has the metrics that the training logged, each as the mean over the window (None if a
    value was not finite).

    Profiled launches have ``clock_offset_ns``, which is the rank's clock minus the clock of rank 0,
    its error bound ``clock_half_ns``, and ``trace_sha256``, the digest of
    ``rank<r>.trace.json.gz``. Launches of a user's script have ``watched``. Launches with a user's
    files have a ``probe``: correctness checks count the products of a step, timed launches also
    time steps.
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
    logged: Mapping[str, float | None] = field(default_factory=dict)
    probe: LateSteps | None = None
