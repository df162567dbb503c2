"""What sweeps of the fabric came to, by world and operation."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.judging.series import Series
from harness.record.fabric import Row, swept


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
