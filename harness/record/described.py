"""Descriptions of cases, which an agent makes before a case runs: facts and expectations."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts of a model at one size, which are known before the model is trained.

    ``flops_per_sample`` counts the forward and the backward pass of one sample.
    ``again_flops_per_sample`` are additional FLOPs because the backward pass recomputes activations
    (None: unknown). ``activation_bytes_per_sample`` is the memory that the forward pass keeps for
    the backward pass, and ``block_bytes`` is the part of each block of the model. ``cast_bytes`` is
    the memory that the forward pass keeps for copies of weights in another dtype; it does not grow
    with the batch. ``again_bytes`` is the memory that the largest block needs while it is
    recomputed. ``loss_bytes_per_sample`` is the memory for temporary tensors of the loss in both
    passes. ``copies`` is the number of weight-sized buffers in training: weights, gradients, and
    two moments of AdamW. ``trained`` is the share of the parameters that are not frozen, and
    ``frozen_bytes`` is the size of the buffers, all of which every rank holds. ``step_s`` is the
    time of a step in seconds if the model itself determines it, as simulated compute does.
    ``loss_floor`` is the entropy of the data in nats, if known.
    """

    num_params: int
    flops_per_sample: float
    tokens_per_sample: int
    activation_bytes_per_sample: int
    input_shape: tuple[int, ...]
    input_dtype: str
    step_s: float | None = None
    cast_bytes: int = 0
    block_bytes: tuple[int, ...] = ()
    again_bytes: int = 0
    loss_bytes_per_sample: int = 0
    copies: int = 4
    trained: float = 1.0
    loss_floor: float | None = None
    again_flops_per_sample: float | None = None
    frozen_bytes: int = 0


def exchanges(steps: range, period: int, until: int = 0, growth: float = 1.0) -> int:
    """Return in how many of these steps the ranks communicate.

    The ranks communicate in each of the first ``until`` steps, then in the last step of each
    period. Each period is ``growth`` times as long as the previous one.
    """
    step = -1
    length = float(period)
    count = 0
    while step < steps.stop:
        step = step + round(length)
        length = length * growth
        count += step in steps and step >= until
    return count + len(range(steps.start, min(until, steps.stop)))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expectations that a strategy states for a case before it runs. Bytes are per rank and
    step.

    ``sent_bytes`` is the number of bytes that each rank sends, by the closed form for the case's
    backend. ``payload_bytes`` maps a kind of collective to the number of input bytes on each rank.
    It has bytes instead of counts because the number of buckets is an implementation detail of DDP.
    ``largest_message`` is the size of the largest single message in bytes. ``dense_bytes`` is the
    number of bytes that an uncompressed all-reduce would send; it is 0 if this comparison does not
    apply. ``ideal_efficiency`` is the highest scaling efficiency that the strategy permits. It
    includes the factor ``balance``, by which unequal pipeline stages reduce it. ``module``,
    ``schedule`` and ``placements`` must equal what the ranks observe in the run (empty placements
    are not checked). ``memory_bytes`` is a rough estimate of the memory of a rank. ``stages`` is
    the number of ranks that a sample passes through in sequence; if it is more than 1, no rank can
    run alone. ``remedies`` maps a term of the time budget to the setting that reduces it.

    If ``period`` is more than 1, ranks communicate in every ``period``-th step only, and then send
    ``period`` times as much; timed windows cover whole periods. In steps before ``until``, ranks
    communicate in each step. Each period is ``growth`` times as long as the previous one.
    ``whole_steps`` are ranges (start, stop, stride) of steps in which ranks exchange complete
    gradients; in such a step a rank sends ``whole_bytes`` and nothing else. ``blocks`` is the
    number of blocks on each rank, if the knob ``split`` can change it. ``staleness`` is the largest
    number of steps by which one rank may lag behind another (None: no limit, or no lag).
    ``repeatable`` is False if two trainings can differ, because ranks use the data that have
    arrived so far. ``casts`` is True if the strategy rounds in operations in which its reference
    does not. ``reorders`` is
    True if it adds numbers in another order than its reference, so that bits may differ.
    """

    sent_bytes: tuple[float, ...]
    payload_bytes: Mapping[str, tuple[float, ...]]
    largest_message: float
    module: str
    ideal_efficiency: float
    balance: float = 1.0
    dense_bytes: float = 0.0
    placements: tuple[str, ...] = ()
    schedule: str = ""
    memory_bytes: int
    formula: str
    global_batch: int
    stages: int = 1
    remedies: Mapping[str, str] = field(default_factory=dict)
    period: int = 1
    until: int = 0
    growth: float = 1.0
    whole_steps: tuple[tuple[int, int, int], ...] = ()
    whole_bytes: float = 0.0
    blocks: tuple[int, ...] = ()
    staleness: int | None = None
    repeatable: bool = True
    casts: bool = False
    reorders: bool = False


def bytes_sent(expected: Expected, rank: int, steps: range) -> float:
    """Return the bytes that a rank sends in these steps, including complete gradients."""
    talking = exchanges(steps, expected.period, expected.until, expected.growth)
    whole = sum(
        step in steps
        for start, stop, stride in expected.whole_steps
        for step in range(start, min(stop, steps.stop), stride)
    )
    usual = expected.sent_bytes[rank] * expected.period
    return usual * (talking - whole) + expected.whole_bytes * whole


@dataclass(frozen=True, kw_only=True)
class Product:
    """A group of identical matrix products (or attentions) in a step.

    ``kind`` is ``product`` or ``attention``. ``flops`` is the number of FLOPs of one product (or
    attention), ``moved_bytes`` is its memory traffic, and ``count`` is the number of products.
    """

    kind: str
    flops: float
    moved_bytes: int
    dtype: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a step on ``samples`` samples if one device has the whole model.

    ``moved_bytes`` is the memory traffic in bytes of all operations except the matrix products.
    ``update_bytes`` is the memory traffic of the optimizer in bytes.
    """

    samples: int
    products: tuple[Product, ...]
    moved_bytes: int
    update_bytes: int


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The training with which the losses of a case are compared.

    The reference trains the case's model without the strategy, on ``shards`` ranks. Cases with the
    same ``key`` have the same reference. ``limit`` is the largest relative difference of the loss
    of a step that rounding explains; 0 if every bit must be equal. If the reference has replicates,
    their spread replaces ``limit``. ``coarse`` is True if gradients are exchanged in 16 bits.
    ``memory_bytes`` is the memory of one rank of the reference, which holds the whole model.
    """

    key: str
    shards: int
    limit: float
    memory_bytes: int
    coarse: bool = False


@dataclass(frozen=True, kw_only=True)
class Described:
    """The description of a case: facts and expectations, or the reason why there are none.

    ``reference`` is None if losses cannot be compared (the case is incorrect on purpose, or the
    record is old). ``twin`` is the index of the small model (twin) that the correctness check
    trains, among its candidates (``cases/twins.py``). ``work`` is the work of a step, if devices
    are compared with their data sheets. ``own_ideal`` is True if a user's strategy states the ideal
    efficiency. ``excuses`` are statements in a user's strategy that its losses cannot be compared,
    or not bit by bit. ``theirs`` lists the kinds of the case's files (such as models) that a user
    wrote. The statements in these files are not verified. ``unsupported`` is the reason, stated by
    the case's files, why they do not support the case (SKIP). ``not_comparable`` is the property of
    the model that no check supports (NOT COMPARABLE). ``error`` is the message of an
    exception in these files (ERROR).
    """

    facts: ModelFacts | None = None
    expected: Expected | None = None
    reference: Reference | None = None
    work: Work | None = None
    own_ideal: bool = False
    excuses: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()
    twin: int = 0
    unsupported: str = ""
    not_comparable: str = ""
    error: str = ""

    @property
    def refused(self) -> str:
        """The reason why the case cannot be launched, or an empty string."""
        return self.error or self.unsupported or self.not_comparable
