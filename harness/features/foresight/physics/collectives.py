"""Costs of collectives: closed forms, and NCCL's choice among its algorithms.

Closed forms count bytes as nccl-tests does: what a rank holds before a reduce-scatter or after an
all-gather. They are from Thakur, Rabenseifner and Gropp (IJHPCA 2005) and Hoefler's LogGP notes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, log2


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """A link, with the seconds before its first byte and its rate in bytes per second."""

    latency_s: float
    bytes_per_s: float


def point_to_point(link: LinkRate, num_bytes: float) -> float:
    return link.latency_s + num_bytes / link.bytes_per_s


def ring_all_reduce(link: LinkRate, num_bytes: float, ranks: int) -> float:
    """Return the seconds of 2 (p-1) messages of n/p bytes."""
    return 2 * ring_all_gather(link, num_bytes, ranks)


def ring_all_gather(link: LinkRate, num_bytes: float, ranks: int) -> float:
    """Return the seconds of p-1 messages of n/p bytes; a reduce-scatter costs the same."""
    return (ranks - 1) * point_to_point(link, num_bytes / ranks)


def recursive_doubling(link: LinkRate, num_bytes: float, ranks: int) -> float:
    """Return the seconds of an all-reduce by ceil(log2 p) exchanges of all bytes, for short
    messages.
    """
    return ceil(log2(ranks)) * point_to_point(link, num_bytes)


def rabenseifner(link: LinkRate, num_bytes: float, ranks: int) -> float:
    """Return the seconds of an all-reduce by recursive halving, then doubling."""
    sent = 2 * (ranks - 1) / ranks * num_bytes
    return 2 * ceil(log2(ranks)) * link.latency_s + sent / link.bytes_per_s


def tree_all_reduce(link: LinkRate, num_bytes: float, ranks: int) -> float:
    """Return the seconds of the pipelined double binary tree (Sanders, Speck and Traeff 2009)."""
    return 2 * ceil(log2(ranks)) * link.latency_s + 2 * num_bytes / link.bytes_per_s


def bruck_all_gather(link: LinkRate, num_bytes: float, ranks: int) -> float:
    sent = (ranks - 1) / ranks * num_bytes
    return ceil(log2(ranks)) * link.latency_s + sent / link.bytes_per_s


def pairwise_all_to_all(link: LinkRate, num_bytes: float, ranks: int) -> float:
    return ring_all_gather(link, num_bytes, ranks)


def hierarchical_all_reduce(
    inside: LinkRate, between: LinkRate, num_bytes: float, per_node: int, nodes: int
) -> float:
    """Return the seconds of a two-level all-reduce.

    It consists of a reduce-scatter inside each node, an all-reduce of each rank's part between
    nodes, and an all-gather inside each node. ``between`` is the link of one rank to other nodes.
    """
    share = num_bytes / per_node
    return ring_all_reduce(inside, num_bytes, per_node) + ring_all_reduce(between, share, nodes)


class CollectiveKind(StrEnum):
    """The kind of collective."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The links of one machine. Rates are per GPU and direction, in bytes/s.

    ``latency_times`` and ``transfer_times`` are factors between a bandwidth sweep and NCCL's model,
    for the shortest and the largest messages of each kind. A kind without a factor follows the
    model. The rates are ``assumed`` if neither the table nor a data sheet states them. In a
    ``torus`` every rank has separate links to its neighbours, and there is no further
    network.
    """

    per_node: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    torus: bool = False
    assumed: bool = False
    latency_times: Mapping[CollectiveKind, float] = field(default_factory=dict)
    transfer_times: Mapping[CollectiveKind, float] = field(default_factory=dict)

    def ring_bytes_per_s(self, ranks: int, in_node: int) -> float:
        """Return the rate of a ring over ``ranks``, with ``in_node`` of them on each node.

        A ring enters a node over one network card and leaves it over another. NCCL creates as many
        rings as there are cards, so the ranks of one node use all of their cards together.
        """
        if ranks <= in_node:
            return self.intra_bytes_per_s
        return min(self.intra_bytes_per_s, in_node * self.inter_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a collective, divided into latency and transfer."""

    latency_s: float
    transfer_s: float

    @property
    def total_s(self) -> float:
        return self.latency_s + self.transfer_s

    def times(self, count: float) -> "Cost":
        return Cost(latency_s=count * self.latency_s, transfer_s=count * self.transfer_s)

    def plus(self, other: "Cost") -> "Cost":
        return Cost(
            latency_s=self.latency_s + other.latency_s,
            transfer_s=self.transfer_s + other.transfer_s,
        )


FREE = Cost(latency_s=0.0, transfer_s=0.0)


@dataclass(frozen=True, kw_only=True)
class _Protocol:
    """One protocol of NCCL: its latencies in microseconds, and its share of the bandwidth."""

    ring_base: float
    ring_hop: float
    ring_net: float
    ring_share: float
    tree_base: float
    tree_hop: float
    tree_net: float
    tree_share: float


#: Values of LL, LL128 and Simple over NVLink and a network, from src/graph/tuning.cc of
#: NVIDIA/nccl, 5067397c.
_PROTOCOLS = (
    _Protocol(
        ring_base=6.6,
        ring_hop=0.6,
        ring_net=2.7,
        ring_share=0.25,
        tree_base=6.8,
        tree_hop=0.6,
        tree_net=5.0,
        tree_share=1 / 3.8,
    ),
    _Protocol(
        ring_base=14.0,
        ring_hop=1.9,
        ring_net=4.0,
        ring_share=120 / 128,
        tree_base=14.0,
        tree_hop=1.25,
        tree_net=8.5,
        tree_share=0.92 * 120 / 128,
    ),
    _Protocol(
        ring_base=8.4,
        ring_hop=3.4,
        ring_net=14.0,
        ring_share=1.0,
        tree_base=8.4,
        tree_hop=4.0,
        tree_net=14.0,
        tree_share=0.92,
    ),
)
_US = 1e-6


def nccl(kind: CollectiveKind, num_bytes: float, ranks: int, in_node: int, fabric: Fabric) -> Cost:
    """Return the cost of the algorithm and protocol that NCCL's tuning model would choose.

    ``in_node`` is the number of ranks on one node. NCCL has trees for all-reduce only. The latency
    of an all-gather therefore grows with the number of ranks, and that of an all-reduce with its
    logarithm.
    """
    if ranks <= 1 or num_bytes <= 0:
        return FREE
    in_node = min(in_node, ranks)
    nodes = ceil(ranks / in_node)
    rate = fabric.ring_bytes_per_s(ranks, in_node)
    passes = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    hops, between = passes * (ranks - 1), passes * (nodes - 1)
    costs = []
    for way in _PROTOCOLS:
        latency = way.ring_base + (hops - between) * way.ring_hop + between * way.ring_net
        sent = passes * (ranks - 1) / ranks * num_bytes
        costs.append(Cost(latency_s=latency * _US, transfer_s=sent / (way.ring_share * rate)))
        if kind is CollectiveKind.ALL_REDUCE and nodes > 1:
            inside = (in_node - 1) * way.tree_hop
            across = log2(nodes) * way.tree_net
            latency = way.tree_base + 2 * (inside + across)
            costs.append(
                Cost(latency_s=latency * _US, transfer_s=2 * num_bytes / (way.tree_share * rate))
            )
    cheapest = min(costs, key=lambda cost: cost.total_s)
    return Cost(
        latency_s=cheapest.latency_s * fabric.latency_times.get(kind, 1.0),
        transfer_s=cheapest.transfer_s * fabric.transfer_times.get(kind, 1.0),
    )
