"""Bytes of collectives in closed form: the input of each collective, and the bytes a rank sends.

A ring of N ranks sends (N-1)/N of its payload in each pass (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Size

from harness.record import Expected

#: Backends without a reduce-scatter; torch uses an all-reduce instead.
NO_SCATTER = ("gloo",)


@dataclass(frozen=True)
class Traffic:
    """The bytes of one rank in a step.

    ``sent`` is the number of bytes sent. ``issued`` maps each kind of collective to its input
    bytes, and ``largest`` is the number of bytes of the largest single collective.
    """

    sent: float = 0.0
    issued: Mapping[str, float] = field(default_factory=dict)
    largest: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        both = {**self.issued}
        for name, payload in other.issued.items():
            both[name] = both.get(name, 0.0) + payload
        return Traffic(self.sent + other.sent, both, max(self.largest, other.largest))

    def __mul__(self, times: float) -> Traffic:
        issued = {name: payload * times for name, payload in self.issued.items()}
        return Traffic(self.sent * times, issued if times else {}, self.largest if times else 0.0)


def all_reduce(payload: float, ranks: int) -> Traffic:
    """Return the traffic of a ring all-reduce: 2 (N-1)/N of the payload is sent."""
    if ranks == 1:
        return Traffic()
    return Traffic(2 * (ranks - 1) / ranks * payload, {"all_reduce": payload}, payload)


def all_gather(shard: float, ranks: int) -> Traffic:
    """Return the traffic of an all-gather: (N-1) times the bytes of a rank's shard."""
    if ranks == 1:
        return Traffic()
    return Traffic((ranks - 1) * shard, {"all_gather": shard}, shard * ranks)


def reduce_scatter(backend: str) -> Callable[[float, int], Traffic]:
    """Return the function that computes a reduce-scatter's traffic: (N-1)/N of the whole input.

    For gloo this function is ``all_reduce``, because gloo has no reduce-scatter.
    """
    if backend in NO_SCATTER:
        return all_reduce

    def scatter(whole: float, ranks: int) -> Traffic:
        if ranks == 1:
            return Traffic()
        return Traffic((ranks - 1) / ranks * whole, {"reduce_scatter": whole}, whole)

    return scatter


def all_to_all(payload: float, ranks: int) -> Traffic:
    """Return the traffic of an all-to-all: (N-1)/N of the payload; a rank keeps one part."""
    if ranks == 1:
        return Traffic()
    return Traffic((ranks - 1) / ranks * payload, {"all_to_all": payload}, payload)


def broadcast(payload: float, ranks: int, hops: int, backend: str) -> Traffic:
    """Return the traffic of a broadcast for the rank that is ``hops`` ranks after the root.

    gloo broadcasts along a tree that doubles the number of senders in every round. NCCL broadcasts
    along a ring, in which every rank but the last one forwards the payload.
    """
    if ranks == 1:
        return Traffic()
    rounds = (ranks - 1).bit_length()
    sends = sum(hops < 1 << i and hops + (1 << i) < ranks for i in range(rounds))
    if backend != "gloo":
        sends = int(hops < ranks - 1)
    return Traffic(sends * payload, {"broadcast": payload}, payload)


def sent(payload: float, messages: int = 1) -> Traffic:
    """Return the traffic of point-to-point sends of ``payload`` bytes in equal messages."""
    return Traffic(payload, {"send": payload}, payload / max(1, messages)) if payload else Traffic()


def sharded(
    blocks: Sequence[Sequence[Size]],
    size: int,
    ranks: int,
    gathers: int,
    replicas: int = 1,
    scatter: Callable[[float, int], Traffic] = all_to_all,
    gathered: int | None = None,
) -> Traffic:
    """Return FSDP2's traffic.

    For each block, parameters are all-gathered and gradients are reduce-scattered. In hybrid
    sharding the gradients of each shard are also all-reduced over ``replicas``. ``size`` is the
    number of bytes of an element. ``gathered`` is the number of bytes of an element of the gathered
    parameters, if it differs.
    """
    total = Traffic()
    for shapes in blocks:
        shard = padded(shapes, size, ranks)
        total += all_gather(padded(shapes, gathered or size, ranks), ranks) * gathers
        total += scatter(shard * ranks, ranks) + all_reduce(shard, replicas)
    return total


def padded(shapes: Sequence[Size], size: int, ranks: int) -> float:
    """Return the bytes of a rank's shard, if dimension 0 of each parameter is padded and split."""
    return float(sum(-(-shape[0] // ranks) * shape[1:].numel() * size for shape in shapes))


def expected(per_rank: Sequence[Traffic], *, largest: float | None = None, **more: Any) -> Expected:
    """Return the expectation of a case with this traffic of each rank and further fields."""
    biggest = max(traffic.largest for traffic in per_rank) if largest is None else largest
    return Expected(**counted(per_rank), largest_message=biggest, **more)


def counted(per_rank: Sequence[Traffic]) -> dict[str, Any]:
    """Return the fields of ``Expected`` that hold bytes, for this traffic of each rank."""
    operations = sorted({name for traffic in per_rank for name in traffic.issued})
    payload = {
        name: tuple(traffic.issued.get(name, 0.0) for traffic in per_rank) for name in operations
    }
    return dict(sent_bytes=tuple(traffic.sent for traffic in per_rank), payload_bytes=payload)
