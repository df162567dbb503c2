"""The fabric: how fast ranks exchange data, before anything is trained over it.

Bus bandwidth is what the busiest link carries, so that it can be held against the hardware whatever
the operation and the number of ranks (as in nccl-tests, doc/PERFORMANCE.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.base.documents import Json
from harness.cases import Device

#: Bus bytes over payload bytes, for n ranks.
OPERATIONS: Mapping[str, str] = {
    "all_reduce": "2 (n-1)/n",
    "all_gather": "(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_to_all": "(n-1)/n",
    "broadcast": "1",
    "send_recv": "1",
}
#: Payloads up to this are judged by their latency, larger ones by their bandwidth.
LATENCY_BYTES = 1024


def factor(operation: str, n: int) -> float:
    """Bus bytes over payload bytes of an operation over n ranks."""
    shares = {"2 (n-1)/n": 2 * (n - 1) / n, "(n-1)/n": (n - 1) / n, "1": 1.0}
    return shares[OPERATIONS[operation]]


def sizes(device: Device) -> tuple[int, ...]:
    """Payloads of a sweep, in bytes: one for the latency, the others for the bandwidth."""
    if device is Device.CUDA:
        return (8, 1 << 20, 64 << 20, 1 << 30)
    return (8, 1 << 16, 1 << 20, 4 << 20)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation at one size over one world, in one launch.

    ``time_s`` is the median over iterations of the slowest rank, ``worst_s`` the longest one.
    ``network`` is what an emulated one was set to. ``right`` says that every rank got what it
    should; ``refused`` why it could not be run. ``attempt`` 1 is the fresh set that confirms a
    FAIL, ``link_mbit`` what the engine set each node's link to, where it does.
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
        """Payload over time, B/s."""
        return None if not self.time_s else self.payload_bytes / self.time_s

    @property
    def bus_bps(self) -> float | None:
        """The rate of the busiest link, B/s."""
        rate = self.algorithm_bps
        return None if rate is None else rate * factor(self.operation, sum(self.nodes))


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Two nodes by their hosts, and what one launch of both took: ``time_s`` of a training's step
    or of an all-reduce, whose bus bandwidth is ``bps`` (B/s). None: it failed.
    """

    a: str
    b: str
    bps: float | None = None
    round: int = 0
    time_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A node, or the two of a link, that is ``slower`` by this share, at these odds (log)."""

    hosts: tuple[str, ...]
    slower: float
    log_evidence: float


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """Nodes measured in pairs, round by round.

    ``nodes`` are slow with whomever they were paired; ``links`` are between nodes that are well;
    ``slow`` are both with their evidence. ``case`` is what a pair trained; "" = it all-reduced.
    ``hosts`` are all nodes; none of them may hide that it is slower by ``wanted``, and of those
    that are ``undecided`` nobody knows whether they do, after ``most`` rounds. ``most`` is None in
    records whose rounds followed another rule; ``limit_bps`` stands in those that took every pair
    under it for slow.
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
    """The settings of an emulated network, as ``+emulated.rate_mbit=100``."""
    return "".join(
        f"+{name}={value:g}" if isinstance(value, float) else f"+{name}={value}"
        for name, value in network
    )


def shapes(nodes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The worlds of a sweep: inside the largest node, across nodes one rank each, and all ranks."""
    worlds = [(max(nodes),), (1,) * len(nodes), tuple(nodes)]
    return tuple(dict.fromkeys(shape for shape in worlds if sum(shape) > 1))


@dataclass(frozen=True, kw_only=True)
class Swept:
    """One operation over one world: its rows of every sweep."""

    nodes: tuple[int, ...]
    network: str
    operation: str
    rows: tuple[Row, ...]

    @property
    def world(self) -> str:
        """``2x4``, ``1+2`` or ``4``."""
        if len(self.nodes) == 1:
            return str(self.nodes[0])
        same = len(set(self.nodes)) == 1
        return f"{len(self.nodes)}x{self.nodes[0]}" if same else "+".join(map(str, self.nodes))

    @property
    def right(self) -> bool:
        """Whether every rank got what it should, every time."""
        return all(row.right or row.refused for row in self.rows)

    @property
    def refused(self) -> str:
        """Why it could not be run; empty if it could."""
        return next((row.refused for row in self.rows if row.refused), "")

    @property
    def latency_s(self) -> tuple[float, ...]:
        """At the smallest payload, one value for each sweep."""
        small = [row.time_s for row in self.rows if row.payload_bytes <= LATENCY_BYTES]
        return tuple(t for t in small if t is not None)

    @property
    def largest(self) -> tuple[Row, ...]:
        """The rows of the largest payload that was timed, one for each sweep."""
        timed = [row for row in self.rows if row.bus_bps is not None]
        most = max((row.payload_bytes for row in timed), default=0)
        return tuple(row for row in timed if row.payload_bytes == most)

    def bus_bps(self, payload: int | None = None) -> tuple[float, ...]:
        """Bus bandwidth at this payload, or the largest, one value for each sweep."""
        sized = self.largest if payload is None else self.rows
        wanted = [row for row in sized if payload in (None, row.payload_bytes)]
        return tuple(row.bus_bps for row in wanted if row.bus_bps is not None)


def swept(rows: Sequence[Row], attempt: int | None = None) -> list[Swept]:
    """The rows by world, network and operation, in the order of the sweeps; None = all attempts."""
    grouped: dict[tuple[tuple[int, ...], str, str], list[Row]] = {}
    for row in rows:
        if attempt in (None, row.attempt):
            grouped.setdefault((row.nodes, row.network, row.operation), []).append(row)
    return [
        Swept(nodes=nodes, network=network, operation=operation, rows=tuple(group))
        for (nodes, network, operation), group in grouped.items()
    ]
