"""The fabric: how fast ranks exchange data, before anything is trained over it.

Bus bandwidth is what the busiest link carries, so that it can be held against the hardware whatever
the operation and the number of ranks (as in nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.codec import Json
from harness.spec import Device

#: Bus bytes over payload bytes, for n ranks.
OPERATIONS: Mapping[str, str] = {
    "all_reduce": "2 (n-1)/n",
    "all_gather": "(n-1)/n",
    "reduce_scatter": "(n-1)/n",
    "all_to_all": "(n-1)/n",
    "broadcast": "1",
    "send_recv": "1",
}
#: Payloads up to this are judged by their latency, from the other on by their bandwidth.
LATENCY_BYTES, BANDWIDTH_BYTES = 1024, 1 << 20


def factor(operation: str, n: int) -> float:
    """Bus bytes over payload bytes of an operation over n ranks."""
    shares = {"2 (n-1)/n": 2 * (n - 1) / n, "(n-1)/n": (n - 1) / n, "1": 1.0}
    return shares[OPERATIONS[operation]]


def sizes(device: Device) -> tuple[int, ...]:
    """Payloads of a sweep, in bytes: one for the latency, the others for the bandwidth."""
    if device is Device.CUDA:
        return (8, 1 << 20, 32 << 20, 256 << 20)
    return (8, 1 << 16, 1 << 20, 4 << 20)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation at one size over one world, in one launch.

    ``time_s`` is the median over iterations of the slowest rank, ``worst_s`` the longest one.
    ``network`` is what an emulated one was set to. ``right`` says that every rank got what it
    should; ``refused`` why it could not be run.
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

    @property
    def algorithm_bps(self) -> float | None:
        """Payload over time, B/s."""
        return None if not self.time_s else self.payload_bytes / self.time_s

    @property
    def bus_bps(self) -> float | None:
        """What the busiest link carried, B/s."""
        rate = self.algorithm_bps
        return None if rate is None else rate * factor(self.operation, sum(self.nodes))


def label(network: Sequence[tuple[str, Json]]) -> str:
    """What an emulated network is set to, as ``+emulated.rate_mbit=100``."""
    return "".join(
        f"+{name}={value:g}" if isinstance(value, float) else f"+{name}={value}"
        for name, value in network
    )


def shapes(nodes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The worlds of a sweep: inside the largest node, across nodes one rank each, and all ranks."""
    found = [(max(nodes),), (1,) * len(nodes), tuple(nodes)]
    return tuple(dict.fromkeys(shape for shape in found if sum(shape) > 1))
