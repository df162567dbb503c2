"""The record of one rank in one launch: its measurements and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.record.spans import Category


@dataclass(frozen=True, kw_only=True)
class ExecutedModel:
    """A strategy's observations of itself: classes and placements, never what was asked for.

    ``module`` is the class of the trained module, ``placements`` those of its parameters;
    ``compute_dtype`` is the dtype that leaf modules really returned. ``staleness`` is how many
    steps the slowest rank was behind what a step was trained on, at most. ``codec_s`` are the
    parts of a compressor's work in a median step. ``skipped`` are the steps that a scaler of losses
    left out, ``recompiled`` whether blocks were compiled in the kept window, too, and ``compile_s``
    what compiling took before. ``fed`` is what an input did for a median step, by name.
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
    """One check of the correctness gate, with its number beside its limit: the most that it may
    be, or where ``at_least`` the least.
    """

    name: str
    ok: bool
    value: float | None = None
    limit: float | None = None
    detail: str = ""
    at_least: bool = False


@dataclass(frozen=True, kw_only=True)
class CollectiveCount:
    """Collectives of one kind that a rank issued in one step; payload is this rank's input."""

    count: int
    payload_bytes: int


#: Bytes that gloo adds to a collective for each other rank, at most: 72 for each of the 8 messages
#: that an all-reduce takes.
GLOO_HEADERS = 576


def headers(issued: Mapping[str, CollectiveCount], world_size: int) -> int:
    """Bytes that gloo adds, at most, to what a rank sends in one step."""
    return GLOO_HEADERS * sum(kind.count for kind in issued.values()) * (world_size - 1)


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
class Routed:
    """The choices of one rank's tokens among the experts of a layer: by expert, ``top`` a token,
    and how many of them found no room.
    """

    asked: tuple[int, ...]
    dropped: int
    top: int


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The most that a rank's device does: FLOP/s of a matrix product, B/s of a copy in its memory
    (each byte read and written), as measured there.
    """

    dtype: str
    matmul_flops: float
    copy_bps: float


@dataclass(frozen=True, kw_only=True)
class SpanRow:
    """One span of a profiled window; ns of the rank's own clock."""

    name: str
    category: Category
    payload: int
    start_ns: int
    end_ns: int


#: How ``Watched.sampler`` goes on where a part of a data set is shared out.
PART = ", of samples "


@dataclass(frozen=True, kw_only=True)
class ScriptObservations:
    """The hooks' observations of a user's own training in one rank; counts are of one step.

    ``world_size`` and ``backend`` are those of the process group that it made (1 and empty without
    one). ``optimizers`` are the classes that step together, in their order within a step, and
    ``backwards`` the backward passes of the last; ``unusual`` many steps of the window have not as
    many as most, and ``passes`` is a digest of all their numbers. ``regular``: every kept step had
    the same optimizers; ``even``: exchanged as many bytes, but for collectives of a few values.
    ``roots`` are the modules that the training calls, and how many rows reached each in the last
    step. ``start`` is a digest of the parameters before the first step, of this rank's part of them
    where they are ``sharded``; ``first`` the sum of the hashes of the samples that came before the
    first update. ``collectives`` are those of the last step, ``small`` how many of them carry
    single values, ``reads`` how often a step of the warm-up reads one (``Tensor.item``).
    ``repeated``: a sampler shuffled two epochs alike. ``seeded``: ``torch.manual_seed`` was called
    before a model was made, with ``seed`` at last. ``source`` is a digest of the script's file,
    ``way`` how its process was started. ``flops`` are those of the step behind the window (0: not
    counted, or it was a short batch's), ``aside`` those of it that no gradient follows from,
    ``distinct`` the share of a step's rows that are not like another one of this rank. ``ragged``:
    rows of some batches are larger than others'.

    ``drawn`` is how many samples loaders handed out for a step (median; 0: unknown), ``as_drawn``
    whether as many rows came as these, in a quarter of the steps or more, ``usual`` how many rows a
    median step has of those of a mean one, ``spread`` their standard deviation as a share of the
    mean, ``skips`` whether some steps have more forward passes than others, ``saved`` the files
    that ``torch.save`` has written, ``whole`` how many the data set has if this rank's loader draws
    all of them by itself (0: a part, or unknown), ``stored`` a digest of what it stores for some of
    them (empty: nothing), ``unclear`` why what reached the model cannot be told to be samples.
    ``evaluations`` are forward passes in the window that train nothing, ``acted`` those before it;
    ``silent`` steps of the window exchange nothing, others do. ``in_eval``: weights were stepped
    after passes in eval mode alone; ``searched``: unused parameters were searched for, and there
    were none; ``random``: the first forward pass drew random numbers, as dropout does;
    ``parallel``: ranks are replicas, or shards of one, and share out the data. ``ahead_s`` is what
    a step (median) takes up to its backward passes by the host's clock: batches, logs, forward
    passes, before ranks wait for each other (0: unknown).

    ``trained_bytes`` are those of the parameters that get gradients (0: not told apart),
    ``workers`` the processes of the loader that hands out most batches, ``again`` the share of a
    step's samples that the step before had, too, ``idle`` the share of the updates looked at that
    left the looked-at elements of their parameters as they were. ``cut``: that they are ``sharded``
    is told by nothing but what ranks exchange within a forward pass. ``cleared``: gradients are
    gone between the backward passes of one update (SAM, LBFGS), so that each exchanges its own.
    ``uncleared``: gradients of the update before were there as one began; ``twice``: an optimizer
    stepped twice without a backward pass between; ``unstepped`` are parts with gradients that no
    optimizer has; ``unchanged``: no parameter of this rank differs, in any bit, between the first
    step and the last. ``reduced`` are the bytes that forward passes of the last step all-reduced.
    ``began`` and ``ended`` are short digests of the parameters before the first step and behind the
    last, one for each of the ``modules``, whose names each node's first rank has; ``sums_before``
    and ``sums_after`` sums of some of their elements with random signs, by which ranks that are
    unlike are told to be so by rounding; ``rates`` the learning rates then,
    ``exchanging`` the roots whose forward passes exchange more than single values. ``sampler`` says
    how a DistributedSampler of the main loader shares out samples, which has to be alike on all
    ranks (empty: there is none). ``bursts_s`` is by how much a mean step takes longer up to its
    backward passes than a median one: what only some steps do. ``loose`` are short digests, behind
    the last step, of the parameters that backward passes reach and optimizers step, but no root
    has.
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
    """The measurements of one rank. Times in s on its own monotonic clock, sizes in bytes.

    ``step_s`` etc. are not here: they are in the samples (``rank<r>.npz``: marks_s, loss,
    sample_ids, rss_bytes), whose digest is ``samples_sha256``. ``sent_bytes`` and
    ``resent_bytes`` cover the kept window, None where sockets do not carry the traffic; so do
    ``busy_s``, the CPU seconds that the cores of ``affinity`` worked for anyone, and
    ``throttled_s``, for which a quota held the rank's group back, and ``waited_s``, for which its
    threads were ready and waited for a core (all added up). ``kernel_s`` is the kept window
    by the kernel's own stamps, ``window_ns`` when it began and ended by the wall clock.
    Where sockets are counted, ``written_bytes`` are all that went through write calls in it,
    what was printed as far as it does not repeat itself, and ``shared`` names writable memory
    that was mapped for others meanwhile. ``phases_s`` says where the rank's time before its
    first step went; ``replica`` is a digest of the parameters after the last step, where all
    ranks of that ``part`` of the model must hold the same. ``squares``, of references, are the mean
    square of this rank's gradient and of all ranks' mean, part by part of the training; ``ceiling``
    is what the device does at
    most, of gates of one rank.
    ``device_uuid`` tells a GPU from all others; it is empty on cores. ``sources`` are digests of
    the user's files that were loaded, by path, of this package, and versions: each node's first
    rank has them.

    Of profiled launches: ``clock_offset_ns`` is this rank's clock less rank 0's, known to
    ``clock_half_ns``; ``trace_sha256`` is the digest of ``rank<r>.trace.json.gz``. Of a user's own
    script: ``watched``.
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
