"""Descriptions of cases that an agent makes before they run: facts, expectations and refusals."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Closed-form facts of a model at one size. FLOPs count forward and backward of one sample.

    ``activation_bytes_per_sample`` is the memory that forward keeps for backward. ``cast_bytes`` is
    the part of it for copies of weights, which does not grow with the batch. ``block_bytes`` are
    the shares of the blocks for one sample. ``again_bytes`` is the memory that the largest block
    needs while it is recomputed. ``again_flops_per_sample`` are recomputed in backward (None:
    unknown). ``loss_bytes_per_sample`` are temporaries of the loss in forward and backward.
    ``copies`` is the number of weight-sized buffers in training: weights, gradients, and two
    moments of AdamW. ``frozen_bytes`` are additional weights that are not trained; every rank holds
    them whole. ``step_s`` is the time of a step if the model itself determines it, as simulated
    compute does. ``loss_floor`` is the entropy of its data in nats, if known.
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
    loss_floor: float | None = None
    again_flops_per_sample: float | None = None
    frozen_bytes: int = 0


def exchanges(steps: range, period: int, until: int = 0, growth: float = 1.0) -> int:
    """Return in how many of these steps the ranks communicate.

    They communicate in each of the first ``until`` steps, then in the last step of each period.
    Each period is ``growth`` times as long as the previous one.
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

    ``sent_bytes`` is the closed form for the case's backend, one number per rank. ``payload_bytes``
    maps a collective to the input bytes that each rank issues in one step (one number per rank). It
    has bytes instead of counts because the number of buckets is an implementation detail of DDP.
    ``largest_message`` is the largest single message. ``dense_bytes`` is the amount that an
    uncompressed all-reduce would send, 0 if this comparison does not apply. ``balance`` is the part
    of ``ideal_efficiency`` that remains with unequal stages. ``module``, ``schedule`` and
    ``placements`` must equal those that ran (placements () = not checked). ``memory_bytes`` is a
    rough estimate of the memory of a rank. ``stages`` is the number of ranks that a sample passes
    through in sequence; if there are several, no rank can run without its neighbours. ``remedies``
    maps a term of the time budget to the setting that reduces it.

    Ranks may communicate in every ``period``-th step only, and then send ``period`` times as much;
    whole periods are timed. Up to step ``until`` they communicate in each step. Periods grow by the
    factor ``growth``. ``whole_steps`` are ranges (start, stop, stride) of steps in which complete
    gradients are exchanged, so that a rank sends ``whole_bytes`` and nothing else. ``blocks`` is
    the number of blocks of each rank, if the knob ``split`` can change it. ``staleness`` is the
    largest permitted one. A training is not ``repeatable`` if ranks use whatever has arrived.
    ``casts``: it rounds at other places than its reference. ``reorders``: it adds in another order,
    so that bits may differ.
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
    """Products of the same kind in a step: their number, the FLOPs and bytes of each, and their
    dtype.

    ``kind``: ``product`` of matrices, or ``attention``.
    """

    kind: str
    flops: float
    moved_bytes: int
    dtype: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a step on ``samples`` samples if one device has the whole model.

    ``moved_bytes`` is the memory traffic of everything except the products, ``update_bytes`` that
    of the optimizer.
    """

    samples: int
    products: tuple[Product, ...]
    moved_bytes: int
    update_bytes: int


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The training with which a case's losses are compared: its plain model, on ``shards`` ranks.

    Cases with the same ``key`` share it. ``limit`` is the largest relative difference of the loss
    of a step that rounding explains, 0 if every bit must be equal. If the reference has replicates,
    their spread replaces ``limit``. ``coarse``: gradients are exchanged in 16 bits.
    ``memory_bytes`` is the memory of one of its ranks, which holds the whole model.
    """

    key: str
    shards: int
    limit: float
    memory_bytes: int
    coarse: bool = False


@dataclass(frozen=True, kw_only=True)
class Described:
    """The answer to ``describe``: facts and expectations, or why there are none.

    ``reference`` is None if nothing can be compared (incorrect on purpose, older records). ``twin``
    is the index of the correctness check's twin among its candidates (``cases/twins.py``). ``work``
    is the work of a step, if devices are compared with their data sheets. ``own_ideal``: the ideal
    efficiency is stated by a user's strategy. ``excuses`` are statements by which a user's strategy
    prevents a comparison of its losses, or a bitwise one. ``theirs`` are the kinds of its files
    that a user wrote, whose statements are not verified. ``unsupported`` is a refusal by the case's
    files (SKIP); ``error`` is an exception in them (ERROR).
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
    error: str = ""
