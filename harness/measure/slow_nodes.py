"""Which node, or which link, is slow? Nodes are paired in rounds, slow ones again with fast ones.

    round 0    0-1, 2-3, 4-5 ..    every node once, an odd one with the first
    round 1    both nodes of a slow pair, each with a node of a fast pair
    decided    slow again: the node; neither slow again: their link

That takes about n/2 + 2 x (slow pairs) launches rather than n (n-1) / 2, so a link that is slow
between two nodes that were never paired is not seen.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

from harness.record.fabric import Paired, Suspects

#: A pair is slow under this share of what is usual.
SLOW = 0.8


def search(hosts: Sequence[str], measure: Callable[[int, int], float]) -> Suspects:
    """Measure pairs of at least 3 nodes, by their numbers, until every slow one is explained."""
    num_nodes, rates = len(hosts), dict[tuple[int, int], float]()

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
    pairs = {k: Paired(a=hosts[k[0]], b=hosts[k[1]], bps=rate) for k, rate in rates.items()}
    links = tuple(p for k, p in pairs.items() if p.bps < limit and not {*k} & {*bad})
    return Suspects(
        pairs=tuple(pairs.values()), limit_bps=limit, nodes=tuple(hosts[n] for n in bad),
        links=links,
    )  # fmt: skip


def _of(node: int, rates: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    return {key: rate for key, rate in rates.items() if node in key}


def _usual(rates: Sequence[float]) -> float:
    """The upper quartile: one slow node of few makes half of all pairs slow."""
    return sorted(rates)[3 * len(rates) // 4]
