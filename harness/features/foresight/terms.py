"""Compute the seconds of a step, term by term, for many shapes and many draws of the unknowns.

step = compute + bubble + tensor exchange + data exchange + host + waiting + growth

Facts that follow from a shape alone are computed once (``ShapeFacts``). The unknowns are listed in
``Unknown``, and ``priors.py`` holds their priors. A draw is one set of values of the unknowns.
Growth is the measured increase of the step that no other term explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import numpy as np
from numpy.typing import NDArray

from harness.features.foresight.physics import simulate
from harness.features.foresight.physics.collectives import FREE, CollectiveKind, Cost, Fabric, nccl
from harness.features.foresight.physics.schedules import Durations, PipelineSchedule
from harness.features.foresight.physics.stragglers import slowest_normal
from harness.features.foresight.shapes import KeptStates, Shape

Array = NDArray[np.float64]

#: Default size of a bucket of DDP in bytes (torch.nn.parallel).
BUCKET_BYTES = 25 * 2**20
#: Number of gradients in a bucket of Megatron-LM: 40 million, or 1 million for each rank if that is
#: more.
BUCKET_GRADIENTS = 40e6
BUCKET_GRADIENTS_OF_RANK = 1e6
#: Time of a hop between stages as a share of a micro-batch on one stage, if no profile states it.
#: With this value the simulator reproduces the published bubbles of 1F1B within one percentage
#: point. Interleaved schedules overlap these transfers with compute (Megatron's overlap of p2p).
HOP = 0.01
#: Share of an exchange that adds to the step even if compute could hide all of it.
SHOWN = 0.1


class ForeseenTerm(StrEnum):
    """A term of the step time, named as in a table."""

    COMPUTE = "compute"
    BUBBLE = "pipeline bubble"
    # includes the exchange between parts of a sequence (context parallelism)
    TENSOR = "tensor exchange"
    BYTES = "exchange bytes"
    LATENCY = "exchange latency"
    HOST = "fixed cost"
    WAITING = "slowest rank"
    GROWTH = "unexplained"


class Unknown(StrEnum):
    """The unknowns that are common to all points of a table. A draw lists them in this order."""

    RATE = "ln of useful FLOP/s of a GPU"
    LINK = "ln(reached rate / rate of the links inside a node)"
    NETWORK = "ln(reached rate / rate of the network between nodes)"
    LATENCY = "ln(latency / latency in NCCL's model)"
    UNHIDDEN = "ln(time of an exchange that no compute hides / time in NCCL's model)"
    WAIT_S = "ln of the jitter of a rank in seconds"
    FIXED = "ln of the fixed cost of a step with replicated pipelines, in micro-batches"
    GROWTH = "ln of the relative growth of a step for each doubling of the ranks"
    NARROW = "ln of the hidden size at which elementwise work takes as long as matrix products"
    SPLIT = "ln of the relative extra cost of a backward that is split"
    CHUNKS = "ln of the relative extra cost of stages with several chunks"


UNKNOWNS = tuple(Unknown)
NUM_SHARED = len(UNKNOWNS)


@dataclass(frozen=True, kw_only=True)
class ShapeFacts:
    """The facts that follow from the shapes alone: arrays with one entry for each shape."""

    group: NDArray[np.intp]  # index of the model
    load: Array  # FLOPs of a micro-batch on one rank
    narrow: Array  # 1 / hidden size; 0 if it is unknown
    micros: Array  # number of micro-batches in a step
    units: Array  # length of a pipeline's step in micro-batches
    splits: Array  # 1 if the schedule splits the backward, else 0
    chunked: Array  # 1 if a stage has several chunks, else 0
    tensor_latency_s: Array  # seconds of latency of tensor and context exchange per micro-batch
    tensor_transfer_s: Array  # seconds of transfer of the same exchange per micro-batch
    tensor_nodes: Array  # log2 of the number of nodes that tensor and context ranks span
    data_latency_s: Array  # seconds of latency of the data exchange per step
    data_transfer_s: Array  # seconds of transfer of the data exchange per step
    data_nodes: Array  # log2 of the number of nodes that all ranks span
    window: Array  # share of the step's compute that can hide the data exchange
    fixed: Array  # 1 if each step ends with an exchange between replicas of a pipeline, else 0
    queued_s: Array  # seconds per step for which a rank waits for a core
    slowest: Array  # E[max of N standard normals], in standard deviations
    doublings: Array  # log2(ranks / ranks of the smallest calibrated size); 0 on a torus


def facts(
    shapes: Sequence[Shape],
    groups: Sequence[int],
    fabric: Fabric,
    base_ranks: int,
    hop: float = HOP,
) -> ShapeFacts:
    """Return the facts of shapes.

    ``groups`` holds the index of each shape's model. ``hop`` is the time of a transfer between
    stages, in the unit of ``HOP``. Rates of ``fabric`` are in bytes/s.
    """
    rows = [_fact(shape, fabric, base_ranks, hop) for shape in shapes]
    names = [name for name in ShapeFacts.__dataclass_fields__ if name != "group"]
    columns = {name: np.array([row[name] for row in rows], float) for name in names}
    return ShapeFacts(group=np.asarray(groups, dtype=np.intp), **columns)


def _fact(shape: Shape, fabric: Fabric, base_ranks: int, hop: float) -> dict[str, float]:
    """Return the facts of one shape, which become one entry of each array of ``ShapeFacts``."""
    tensor = _tensor_exchange(shape, fabric).plus(_context_exchange(shape, fabric))
    data = data_exchange(shape, fabric)
    inner = shape.tensor * shape.context * shape.stages
    overlapped = shape.schedule is PipelineSchedule.INTERLEAVED
    played = durations(shape, 0.0 if overlapped else hop)
    units = simulate.units(shape.schedule, shape.stages, shape.micros, played, shape.chunks)
    return {
        "load": shape.flops / (shape.replicas * shape.micros) / inner,
        "narrow": 1 / shape.model.width if shape.model.width else 0.0,
        "micros": shape.micros,
        "units": units,
        "splits": shape.schedule.splits,
        "chunked": shape.chunks > 1,
        "tensor_latency_s": tensor.latency_s,
        "tensor_transfer_s": tensor.transfer_s,
        "tensor_nodes": np.log2(max(1.0, shape.tensor * shape.context / fabric.per_node)),
        "data_latency_s": data.latency_s,
        "data_transfer_s": data.transfer_s,
        "data_nodes": np.log2(max(1.0, shape.ranks / fabric.per_node)),
        "window": _window(shape),
        "fixed": shape.stages > 1 and shape.replicas > 1,
        "queued_s": shape.queued_s,
        "slowest": slowest_normal(shape.ranks),
        "doublings": 0.0 if fabric.torus else np.log2(shape.ranks / base_ranks),
    }


def durations(shape: Shape, hop: float) -> Durations:
    """Return F, B and W of a transformer layer as shares of their sum (Qi et al., Table 1)."""
    longer = shape.seq / shape.model.hidden if shape.model.hidden else 0.0
    whole = 72 + 12 * longer
    return Durations(
        forward=(24 + 4 * longer) / whole,
        backward=(24 + 8 * longer) / whole,
        weights=24 / whole,
        hop=hop,
    )


def _window(shape: Shape) -> float:
    """Return the share of a step's compute that can hide the data exchange.

    Sharded layers are gathered while every other layer computes. Buckets are exchanged during the
    last backward, which is two thirds of its micro-batch. In a pipeline nothing is hidden, because
    its stages wait for each other while it drains.
    """
    if not shape.hides:
        return 0.0
    if shape.kept in (KeptStates.ALL_CUT, KeptStates.NODE_CUT):
        return 1.0
    return 0.0 if shape.stages > 1 else 2 / 3 / shape.micros


def _tensor_exchange(shape: Shape, fabric: Fabric) -> Cost:
    """Return the cost of tensor parallelism per micro-batch.

    Each layer needs four all-reduces of two bytes for each token and hidden element.
    """
    if shape.tensor == 1:
        return FREE
    layers, hidden = shape.model.layers or 32, shape.model.hidden or 4096
    num_bytes = 2 * shape.micro_batch * shape.seq / shape.context * hidden
    exchange = nccl(CollectiveKind.ALL_REDUCE, num_bytes, shape.tensor, fabric.per_node, fabric)
    return exchange.times(4 * layers / shape.stages)


def _context_exchange(shape: Shape, fabric: Fabric) -> Cost:
    """Return the cost of context parallelism per micro-batch.

    Each layer gathers keys and values of all other parts of the sequence in both passes, and
    scatters their gradients, with two bytes per element.
    """
    if shape.context == 1:
        return FREE
    layers, hidden = shape.model.layers or 32, shape.model.hidden or 4096
    width = shape.model.keys or hidden
    num_bytes = 2 * 2 * shape.micro_batch * shape.seq * width / shape.tensor
    in_node = max(1, fabric.per_node // shape.tensor)
    gather, scatter = (
        nccl(kind, num_bytes, shape.context, in_node, fabric)
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    )
    return gather.times(2).plus(scatter).times(layers / shape.stages)


def data_exchange(shape: Shape, fabric: Fabric) -> Cost:
    """Return NCCL's time for gradients and parameters of one step.

    The cost is zero on a torus, because XLA overlaps gathers and scatters with compute over links
    that no other rank uses.
    """
    if fabric.torus:
        return FREE
    ranks = round(shape.replicas * shape.context)
    cut = shape.tensor * shape.stages
    params, trained = ((count or 1e9) / cut for count in (shape.model.params, shape.model.trained))
    in_node = max(1, fabric.per_node // shape.tensor)
    if shape.sent:
        return _stated(shape, ranks, in_node, fabric)

    def buckets(kind: CollectiveKind, num_bytes: float, group: int, near: int) -> Cost:
        most = 4 * max(BUCKET_GRADIENTS, BUCKET_GRADIENTS_OF_RANK * group)
        pieces = ceil(num_bytes / (BUCKET_BYTES if shape.kept is KeptStates.WHOLE else most))
        return nccl(kind, num_bytes / pieces, group, near, fabric).times(pieces)

    if shape.kept is KeptStates.WHOLE:
        return buckets(CollectiveKind.ALL_REDUCE, 4 * trained, ranks, in_node)
    if shape.kept is KeptStates.OPTIMIZER_CUT:
        scattered = buckets(CollectiveKind.REDUCE_SCATTER, 4 * trained, ranks, in_node)
        return scattered.plus(buckets(CollectiveKind.ALL_GATHER, 2 * trained, ranks, in_node))
    layers = max(1, round((shape.model.layers or 32) / shape.stages))
    group = ranks if shape.kept is KeptStates.ALL_CUT else min(ranks, in_node)
    gathered = nccl(CollectiveKind.ALL_GATHER, 2 * params / layers, group, in_node, fabric).times(2)
    scattered = nccl(CollectiveKind.REDUCE_SCATTER, 2 * trained / layers, group, in_node, fabric)
    cost = gathered.plus(scattered).times(layers * shape.micros)
    if group == ranks:
        return cost
    return cost.plus(
        buckets(CollectiveKind.ALL_REDUCE, 4 * trained / group, ceil(ranks / group), 1)
    )


def _stated(shape: Shape, ranks: int, in_node: int, fabric: Fabric) -> Cost:
    cost = FREE
    for sent in shape.sent:
        piece = nccl(sent.kind, sent.at(ranks) / sent.pieces, ranks, in_node, fabric)
        cost = cost.plus(piece.times(sent.pieces))
    return cost


def seconds(given: ShapeFacts, draws: Array) -> dict[ForeseenTerm, Array]:
    """Return the seconds of each term, as arrays of shape (draws, shapes).

    Each row of ``draws`` holds the values of ``UNKNOWNS``, followed by the ln of the relative
    compute rate of each model.
    """
    know = {name: draws[:, i : i + 1] for i, name in enumerate(UNKNOWNS)}
    of_model = draws[:, NUM_SHARED:][:, given.group]
    rate = np.exp(know[Unknown.RATE] + of_model)
    dearer = given.splits * np.exp(know[Unknown.SPLIT]) + given.chunked * np.exp(
        know[Unknown.CHUNKS]
    )
    narrow = 1 + np.exp(know[Unknown.NARROW]) * given.narrow
    micro = given.load / rate * narrow * (1 + dearer)
    latency = np.exp(know[Unknown.LATENCY])
    near, far = np.exp(-know[Unknown.LINK]), np.exp(-know[Unknown.NETWORK])
    tensor = given.tensor_latency_s * latency
    tensor = tensor + given.tensor_transfer_s * np.where(given.tensor_nodes > 0, far, near)
    compute = given.micros * micro
    by_latency = given.data_latency_s * latency
    by_bytes = given.data_transfer_s * np.where(given.data_nodes > 0, far, near)
    shown = (1 - given.fixed) * _shown(by_latency + by_bytes, given.window, compute, know)
    share = by_latency / np.maximum(by_latency + by_bytes, 1e-30)
    bubble = (given.units - given.micros) * (micro + tensor)
    # Other ranks use the cores while this rank idles in a bubble or an exchange, so only the rest
    # of its queueing adds to the step.
    queued = np.maximum(given.queued_s - bubble - shown, 0.0)
    out = {
        ForeseenTerm.COMPUTE: compute,
        ForeseenTerm.BUBBLE: bubble,
        ForeseenTerm.TENSOR: given.micros * tensor,
        ForeseenTerm.BYTES: shown * (1 - share),
        ForeseenTerm.LATENCY: shown * share,
        ForeseenTerm.HOST: given.fixed * np.exp(know[Unknown.FIXED]) * (micro + tensor) + queued,
        ForeseenTerm.WAITING: given.slowest * np.exp(know[Unknown.WAIT_S]),
    }
    # Growth is limited to a factor of twenty (e^3), so that the search for a fit stays finite.
    grown = np.expm1(np.minimum(np.exp(know[Unknown.GROWTH]) * given.doublings, 3.0))
    return {**out, ForeseenTerm.GROWTH: sum(out.values()) * grown}


def _shown(exchange: Array, window: Array, compute: Array, know: dict[Unknown, Array]) -> Array:
    """Return the seconds of an exchange that lengthen the step.

    The share ``SHOWN`` of the exchange always lengthens it, because nothing hides the first and the
    last piece, and the exchange slows concurrent kernels. The share ``window`` of the compute can
    hide the rest. The rest lengthens the step only by the seconds that exceed this compute. The
    transition is smooth, because the fit needs derivatives.
    """
    always = SHOWN * exchange
    longer = exchange - window * compute
    corner = 0.1 * exchange
    beyond = (longer + np.sqrt(longer**2 + corner**2)) / 2
    hidden = np.minimum(always + beyond, exchange)
    shown: Array = np.where(window > 0, hidden, np.exp(know[Unknown.UNHIDDEN]) * exchange)
    return shown


def step_s(given: ShapeFacts, draws: Array) -> Array:
    """Return the seconds of a step, of shape (draws, shapes)."""
    total: Array = np.asarray(sum(seconds(given, draws).values()))
    return total
