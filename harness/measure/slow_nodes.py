"""Which node, or which link, is slow? Nodes are paired in rounds, slow ones again with fast ones.

    round 0    0-1, 2-3, 4-5 ..    every node once, an odd one with the first
    round 1    both nodes of a slow pair, each with a node of a fast pair
    decided    slow again: the node; neither slow again: their link

That takes about n/2 + 2 x (slow pairs) launches rather than n (n-1) / 2, so a link that is slow
between two nodes that were never paired is not seen.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: A pair is slow under this share of what is usual.
SLOW = 0.8


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two nodes and the bus bandwidth between them, B/s."""

    a: int
    b: int
    bps: float


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """What was measured, the limit under which a pair is slow, and what that comes to.

    ``nodes`` are slow with whomever they were paired; ``links`` are between nodes that are well.
    """

    pairs: tuple[Pair, ...]
    limit_bps: float
    nodes: tuple[int, ...]
    links: tuple[Pair, ...]


def search(num_nodes: int, measure: Callable[[int, int], float]) -> Suspects:
    """Measure pairs of at least 3 nodes until every slow one is explained."""
    rates: dict[tuple[int, int], float] = {}

    def pair(a: int, b: int) -> None:
        key = (min(a, b), max(a, b))
        if key not in rates:
            rates[key] = measure(*key)

    for a in range(0, num_nodes, 2):
        pair(a, (a + 1) % num_nodes)
    if len(rates) < 3:  # too few to say what is usual
        for a, b in itertools.combinations(range(num_nodes), 2):
            pair(a, b)
    limit = SLOW * _usual(list(rates.values()))
    for a, b in [key for key, rate in rates.items() if rate < limit]:
        well = [n for n in range(num_nodes) if any(r >= limit for r in _of(n, rates).values())]
        for node in (a, b):
            partners = [n for n in well if n not in (a, b)]
            if partners and len(_of(node, rates)) < 2:
                pair(node, partners[0])
    slow = {key for key, rate in rates.items() if rate < limit}
    bad = tuple(
        n for n in range(num_nodes) if len(of_node := _of(n, rates)) > 1 and set(of_node) <= slow
    )
    pairs = tuple(Pair(a=a, b=b, bps=rate) for (a, b), rate in rates.items())
    links = tuple(p for p in pairs if p.bps < limit and not {p.a, p.b} & set(bad))
    return Suspects(pairs=pairs, limit_bps=limit, nodes=bad, links=links)


def _of(node: int, rates: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    return {key: rate for key, rate in rates.items() if node in key}


def _usual(rates: Sequence[float]) -> float:
    """The upper quartile: one slow node of few makes half of all pairs slow."""
    return sorted(rates)[3 * len(rates) // 4]
