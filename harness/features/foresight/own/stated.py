"""Derive the bytes that ranks exchange at any size from their bytes at two sizes.

The strategy's file states these bytes, or hooks observed them in the user's script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.features.foresight.physics.collectives import CollectiveKind
from harness.features.foresight.shapes import KeptStates, Sent
from harness.record import Described, ScriptObservations

#: Operations whose cost has a closed form. The second value says whether the input of a rank is
#: only its part of the whole data.
OPERATIONS: Mapping[str, tuple[CollectiveKind, bool]] = {
    "all_reduce": (CollectiveKind.ALL_REDUCE, False),
    "all_gather": (CollectiveKind.ALL_GATHER, True),
    "reduce_scatter": (CollectiveKind.REDUCE_SCATTER, False),
    "all_to_all": (CollectiveKind.ALL_TO_ALL, False),
}
#: Ratio of gathered to scattered bytes above which parameters are gathered twice (for forward and
#: backward) and not once (for the optimizer's update).
TWICE = 1.5


class StatedTraffic(NamedTuple):
    """The traffic of the rank that sends most in a step.

    ``payload`` maps each operation to its input bytes in a step. ``largest`` is the size of the
    largest message in bytes.
    """

    payload: Mapping[str, float]
    largest: float


def stated(described: Described) -> StatedTraffic | None:
    """Return the traffic that the file of a strategy states for a case, or None."""
    if (expected := described.expected) is None:
        return None
    payload = {name: max(sizes, default=0.0) for name, sizes in expected.payload_bytes.items()}
    return StatedTraffic(payload, expected.largest_message)


def watched(seen: ScriptObservations) -> StatedTraffic:
    """Return the traffic that hooks observed in a rank of a script, per step."""
    payload = {name: float(issued.payload_bytes) for name, issued in seen.collectives.items()}
    sizes = (
        issued.payload_bytes / issued.count for issued in seen.collectives.values() if issued.count
    )
    return StatedTraffic(payload, max(sizes, default=0.0))


def kept(issued: Mapping[str, float], ranks: int) -> KeptStates:
    """Return how the state is divided among ranks.

    This is inferred from the bytes of each operation that a rank issues in a step.
    """
    scattered = sum(value for name, value in issued.items() if "reduce_scatter" in name)
    gathered = sum(value for name, value in issued.items() if "all_gather" in name)
    reduced = sum(
        value for name, value in issued.items() if "all_reduce" in name or "allreduce" in name
    )
    if scattered and reduced > scattered / ranks:
        return KeptStates.NODE_CUT
    if not scattered and gathered:  # a backend without reduce-scatter all-reduces everything
        scattered = reduced
    if not scattered:
        return KeptStates.WHOLE
    return KeptStates.ALL_CUT if gathered * ranks > TWICE * scattered else KeptStates.OPTIMIZER_CUT


def sent_by(by_size: Mapping[int, StatedTraffic | None]) -> tuple[Sent, ...]:
    """Return the exchange at any size, from the traffic of a rank at two sizes; () if unknown.

    The bytes of a world are constant or grow linearly with its ranks. The two largest sizes
    determine both coefficients.
    """
    known = {
        ranks: traffic
        for ranks, traffic in sorted(by_size.items())
        if ranks > 1 and traffic is not None
    }
    sizes = dict(list(known.items())[-2:])
    names = {name for traffic in sizes.values() for name in traffic.payload}
    if not sizes or not names <= OPERATIONS.keys():
        return ()
    return tuple(_law(name, sizes) for name in sorted(names))


def _law(name: str, by_size: Mapping[int, StatedTraffic]) -> Sent:
    kind, is_part = OPERATIONS[name]
    wholes = [
        traffic.payload.get(name, 0.0) * (ranks if is_part else 1)
        for ranks, traffic in by_size.items()
    ]
    first = min(by_size)
    last = max(by_size)
    small = wholes[0]
    large = wholes[-1]
    of_rank = (large - small) / (last - first) if last > first else 0.0
    largest = by_size[last].largest or large
    pieces = max(1, round(large / largest)) if largest else 1
    return Sent(kind=kind, num_bytes=large - of_rank * last, of_rank=of_rank, pieces=pieces)


def padding(by_size: Mapping[int, StatedTraffic | None]) -> float:
    """Return the ratio of the bytes of all shards at the larger and the smaller of two sizes.

    Every rank gets an equal part of the first dimension, so narrow parameters are padded. The ratio
    is 1 if parameters are not sharded.
    """
    wholes = [
        traffic.payload.get("all_gather", 0.0) * ranks
        for ranks, traffic in sorted(by_size.items())
        if traffic is not None
        and kept(traffic.payload, ranks) in (KeptStates.ALL_CUT, KeptStates.NODE_CUT)
    ]
    return wholes[-1] / wholes[0] if len(wholes) == 2 and wholes[0] else 1.0
