"""What sweeps of the fabric came to, by world and operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.apart import Series
from harness.fabric import LATENCY_BYTES, Row


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
        return all(r.right or r.refused for r in self.rows)

    @property
    def refused(self) -> str:
        """Why it could not be run; empty if it could."""
        return next((r.refused for r in self.rows if r.refused), "")

    @property
    def latency_s(self) -> tuple[float, ...]:
        """At the smallest payload, one value for each sweep."""
        small = [r.time_s for r in self.rows if r.payload_bytes <= LATENCY_BYTES]
        return tuple(t for t in small if t is not None)

    def bus_bps(self, payload: int | None = None) -> tuple[float, ...]:
        """Bus bandwidth at this payload, or the largest, one value for each sweep."""
        sized = [r for r in self.rows if r.bus_bps is not None]
        wanted = payload or max((r.payload_bytes for r in sized), default=0)
        return tuple(r.bus_bps or 0.0 for r in sized if r.payload_bytes == wanted)


def swept(rows: Sequence[Row]) -> list[Swept]:
    """The rows by world, network and operation, in the order of the sweeps."""
    found: dict[tuple[tuple[int, ...], str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.nodes, row.network, row.operation), []).append(row)
    return [
        Swept(nodes=nodes, network=network, operation=operation, rows=tuple(own))
        for (nodes, network, operation), own in found.items()
    ]


def series(rows: Sequence[Row]) -> list[Series]:
    """What rules on ``fabric/OPERATION`` are held against."""
    return [
        Series(
            name=f"fabric/{s.operation}@{s.world}{s.network}",
            family=f"fabric/{s.operation}",
            world_size=sum(s.nodes),
            num_nodes=len(s.nodes),
            values={"bus_bandwidth": s.bus_bps(), "collective_latency": s.latency_s},
            wrong="" if s.right else "a rank did not get what it should: trust nothing over it",
            refused=s.refused,
        )
        for s in swept(rows)
    ]
