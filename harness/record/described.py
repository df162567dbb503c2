"""Descriptions of cases by an agent, before they run: facts, expectations, refusals."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Closed-form facts of a model at a size. FLOPs count forward and backward of one sample.

    ``activation_bytes_per_sample`` is what forward keeps for backward, ``cast_bytes`` the copies of
    weights among it, which do not grow with the batch. ``block_bytes`` are each block's part of a
    sample, ``again_bytes`` what the largest block needs while it is computed once more.
    ``again_flops_per_sample`` are computed a second time, in backward, where less is kept
    (None: unknown).
    ``loss_bytes_per_sample`` are the loss' temporaries, forwards and backwards.
    ``copies`` of the weights are held in training: themselves, gradients, two moments of AdamW.
    ``frozen_bytes`` of weights beside them do not train, and every rank holds them whole.
    ``step_s`` is a step's time where the model itself sets it, as stand-ins do; ``loss_floor`` the
    entropy of its data in nats, where that is known.
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
    """How many of these steps ranks talk in: of the first ``until`` in all, then in the last of
    each period, the next one ``growth`` times as long.
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
    """The expectation that a strategy states of a case, before it runs. Bytes are per rank and
    step.

    ``sent_bytes`` is the closed form for the case's backend, one figure per rank.
    ``payload_bytes`` maps a collective to the input bytes that each rank issues in one step (one
    figure per rank); bytes rather than counts, since the number of buckets is DDP's business.
    ``largest_message`` is the largest single one.
    ``dense_bytes`` is what an uncompressed all-reduce would send, 0 where that is no measure.
    ``balance`` is the part of ``ideal_efficiency`` that stages of unequal work leave.
    ``module``, ``schedule`` and ``placements`` must be what ran (placements () = not asserted).
    ``memory_bytes`` is what a rank will need, roughly. ``stages`` are the ranks that a sample
    passes through in turn: with several, no rank can go without its neighbours. ``remedies`` maps a
    term of the budget to the setting that makes it smaller. Ranks that talk in every ``period``-th
    step only send ``period`` times as much in it; what is timed is whole periods; ``until`` a step
    they talk in each, and periods become longer by ``growth``. ``whole_steps`` are ranges (start,
    stop, stride) of steps in which gradients are exchanged whole, so that a rank sends
    ``whole_bytes`` and nothing else. ``blocks`` are those of each rank in turn, where the knob
    ``split`` can move them. ``staleness`` is the largest that may be; a
    training is not ``repeatable`` where ranks take what has come in; ``casts``: it rounds in other
    places than its reference; ``reorders``: it adds in another order, so that bits may differ.
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
    """The bytes that a rank sends in these steps, whole gradients among them."""
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
    """Products that are alike: how many a step has, FLOPs and bytes of each, and their dtype.

    ``kind``: ``product`` of matrices, or ``attention``.
    """

    kind: str
    flops: float
    moved_bytes: int
    dtype: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a step of so many ``samples``, if one device has the whole model.

    ``moved_bytes`` is what all but the products reads and writes, ``update_bytes`` the optimizer.
    """

    samples: int
    products: tuple[Product, ...]
    moved_bytes: int
    update_bytes: int


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The training that a case's losses are compared with: its plain model, on ``shards`` ranks.

    Cases of one ``key`` share it. ``limit`` is the largest relative difference of a step's loss
    that rounding explains, 0 where every bit must be equal; where the reference has replicates,
    they say what rounding explains. ``coarse``: gradients are exchanged in 16 bits.
    ``memory_bytes`` is what a rank of it needs, since it holds the whole model.
    """

    key: str
    shards: int
    limit: float
    memory_bytes: int
    coarse: bool = False


@dataclass(frozen=True, kw_only=True)
class Described:
    """The answer to ``describe``: facts and expectations, or why there are none.

    ``reference`` is None where nothing can be compared (wrong on purpose, older records).
    ``twin`` is the number of the gate's twin among what it could be (``cases/twins.py``).
    ``work`` is what a step computes where devices are compared with their data sheets.
    ``own_ideal``: the ideal efficiency is what a user's own strategy says of itself. ``excuses``
    are the words by which such a strategy keeps its losses from being compared, or to the bit.
    ``theirs`` are the kinds of its files that are a user's: what they say, they say of themselves.
    ``unsupported`` is what the case's files refuse (SKIP); ``error`` that they broke (ERROR).
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
