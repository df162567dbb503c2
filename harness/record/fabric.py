"""Measurements of how fast ranks exchange data over the fabric, without any training.

The bus bandwidth is the data rate of the busiest link. It can be compared with the rate of the
hardware for any operation and any number of ranks (as in nccl-tests, doc/PERFORMANCE.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.base.documents import Json
from harness.cases import Device

#: Ratio of bus bytes to payload bytes for n ranks, by operation.
OPERATIONS: Mapping[str, str] = {
    "all_reduce": "2 (n-1)/n",
    "all_gather": "(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_to_all": "(n-1)/n",
    "broadcast": "1",
    "send_recv": "1",
}
#: Largest payload, in bytes, that measures latency. Larger ones measure bandwidth.
LATENCY_BYTES = 1024


def factor(operation: str, n: int) -> float:
    """Return the ratio of bus bytes to payload bytes of an operation over n ranks."""
    shares = {"2 (n-1)/n": 2 * (n - 1) / n, "(n-1)/n": (n - 1) / n, "1": 1.0}
    return shares[OPERATIONS[operation]]


def sizes(device: Device) -> tuple[int, ...]:
    """Return the payloads of a sweep in bytes.

    The smallest one measures the latency; the others measure the bandwidth.
    """
    if device is Device.CUDA:
        return (8, 1 << 20, 64 << 20, 1 << 30)
    return (8, 1 << 16, 1 << 20, 4 << 20)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one operation at one payload on one world, in one launch.

    The time of an iteration is the time of its slowest rank. ``time_s`` is the median over
    iterations, and ``worst_s`` is the longest time, both in seconds. ``nodes`` is the number of
    ranks on each node. ``network`` has the settings of an emulated network as text. ``right`` is
    True if every rank received the correct result. ``refused`` is the reason if the operation could
    not run. ``attempt`` is 1 in the new set of launches that confirms a FAIL, otherwise 0.
    ``link_mbit`` is the rate in Mbit/s to which the engine limited the link of each node; None if
    the link was not limited.
    """

    nodes: tuple[int, ...]
    operation: str
    payload_bytes: int
    transport: str
    time_s: float | None = None
    worst_s: float | None = None
    right: bool = False
    refused: str = ""
    launch: int = 0
    network: str = ""
    attempt: int = 0
    link_mbit: float | None = None

    @property
    def algorithm_bps(self) -> float | None:
        """The payload divided by the time, in B/s."""
        return None if not self.time_s else self.payload_bytes / self.time_s

    @property
    def bus_bps(self) -> float | None:
        """The data rate of the busiest link, in B/s."""
        rate = self.algorithm_bps
        return None if rate is None else rate * factor(self.operation, sum(self.nodes))


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The result of one launch on a pair of nodes.

    ``a`` and ``b`` are the host names of the nodes. ``time_s`` is the time of a training step or of
    an all-reduce in seconds; None if the launch failed. ``bps`` is the bus bandwidth of the
    all-reduce in B/s; None if the launch failed or trained a case.
    """

    a: str
    b: str
    bps: float | None = None
    round: int = 0
    time_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A slow node (one host) or a slow link (two hosts).

    ``slower`` is the relative slowdown (0.1 = 10 %). ``log_evidence`` is the natural logarithm of
    the evidence for it.
    """

    hosts: tuple[str, ...]
    slower: float
    log_evidence: float


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """The results of measuring nodes in pairs, round by round.

    ``nodes`` are the nodes that are slow with every partner. ``links`` are the pairs that are slow
    although neither of their nodes is slow. ``slow`` lists these nodes and links with the evidence.
    ``case`` is the case that each pair trained; it is empty if the pairs ran all-reduces. ``hosts``
    are all measured nodes. The rounds continue until every node that is slower by ``wanted`` (0.1 =
    10 %) would have been detected, or until ``most`` rounds were made. ``undecided`` are the nodes
    for which the rounds decided nothing. ``most`` is None in older records, which had another rule
    for the rounds. ``limit_bps`` is set in older records that regarded every pair with a lower rate
    as slow.
    """

    pairs: tuple[Paired, ...]
    nodes: tuple[str, ...]
    links: tuple[Paired, ...]
    slow: tuple[Slow, ...] = ()
    case: str = ""
    hosts: tuple[str, ...] = ()
    limit_bps: float | None = None
    wanted: float | None = None
    most: int | None = None
    undecided: tuple[str, ...] = ()


def label(network: Sequence[tuple[str, Json]]) -> str:
    """Return the settings of an emulated network as text: ``+emulated.rate_mbit=100``."""
    return "".join(
        f"+{name}={value:g}" if isinstance(value, float) else f"+{name}={value}"
        for name, value in network
    )


def shapes(nodes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the worlds of a sweep, as numbers of ranks on each node.

    These worlds are the largest node alone, one rank on each node, and all ranks on all nodes.
    """
    worlds = [(max(nodes),), (1,) * len(nodes), tuple(nodes)]
    return tuple(dict.fromkeys(shape for shape in worlds if sum(shape) > 1))


@dataclass(frozen=True, kw_only=True)
class Swept:
    """The rows of all sweeps for one operation on one world."""

    nodes: tuple[int, ...]
    network: str
    operation: str
    rows: tuple[Row, ...]

    @property
    def world(self) -> str:
        """The world as text: ``2x4``, ``1+2`` or ``4``."""
        if len(self.nodes) == 1:
            return str(self.nodes[0])
        same = len(set(self.nodes)) == 1
        return f"{len(self.nodes)}x{self.nodes[0]}" if same else "+".join(map(str, self.nodes))

    @property
    def right(self) -> bool:
        """Whether every rank received the correct result every time."""
        return all(row.right or row.refused for row in self.rows)

    @property
    def refused(self) -> str:
        """The reason why the operation could not run; empty if it ran."""
        return next((row.refused for row in self.rows if row.refused), "")

    @property
    def latency_s(self) -> tuple[float, ...]:
        """The times at the payload that measures latency, in seconds, one for each sweep."""
        small = [row.time_s for row in self.rows if row.payload_bytes <= LATENCY_BYTES]
        return tuple(t for t in small if t is not None)

    @property
    def largest(self) -> tuple[Row, ...]:
        """The rows of the largest timed payload, one for each sweep."""
        timed = [row for row in self.rows if row.bus_bps is not None]
        most = max((row.payload_bytes for row in timed), default=0)
        return tuple(row for row in timed if row.payload_bytes == most)

    def bus_bps(self, payload: int | None = None) -> tuple[float, ...]:
        """Return the bus bandwidth of each sweep in B/s, at this payload or at the largest one."""
        sized = self.largest if payload is None else self.rows
        wanted = [row for row in sized if payload in (None, row.payload_bytes)]
        return tuple(row.bus_bps for row in wanted if row.bus_bps is not None)


def swept(rows: Sequence[Row], attempt: int | None = None) -> list[Swept]:
    """Group rows by world, network and operation, in the order of the sweeps.

    ``attempt`` selects the rows of one attempt; None selects all rows.
    """
    grouped: dict[tuple[tuple[int, ...], str, str], list[Row]] = {}
    for row in rows:
        if attempt in (None, row.attempt):
            grouped.setdefault((row.nodes, row.network, row.operation), []).append(row)
    return [
        Swept(nodes=nodes, network=network, operation=operation, rows=tuple(group))
        for (nodes, network, operation), group in grouped.items()
    ]
