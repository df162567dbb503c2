"""Rounds: which nodes are paired next, and which of them are named.

    rounds 0, 1   every node, each time with another partner that is drawn; again, as long as a
                  node could hide that is slower by what is wanted: launches scatter too much
    then          suspects, each with a node that is well; pairs of well nodes beside them;
                  once more, links that were slow between nodes that are well
    named         a node by what it was with all its partners, a link by what it was each time

Fewer than ``FEW`` nodes meet all others in every round. A link is seen only if it was drawn.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.features.nodes.evidence import log_evidence

#: Chance that any node or link is named wrongly, of all together.
ALPHA = 0.01
#: Under this many nodes, all pairs are measured in each round.
FEW = 8
#: Rounds in which every node is measured.
FULL = 2
#: Pairs in a round from which on their median is what the round itself did to all of them.
COMMON = 6
#: e-values: of a node that is measured again, and of a link that is.
SUSPECT, DOUBTED = 0.01, 20.0
#: By which share a node is slower that is worth naming.
LEAST = 0.01
#: Deviations beyond which a node that is there each time is no measure of noise.
ALWAYS = 2.0
#: Pairs of well nodes beside the suspects.
BESIDE = 8
#: Slowness that is tried on what was measured, how often, and in what share it has to be seen.
TRIED = (0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
TRIALS, SEEN = 200, 0.99
#: Launches of a node in the rounds that are usual, and of others that are compared with.
LAUNCHES, OTHERS = 8, 400
#: A node that is slower by so many times what is worth naming may not hide.
WANTED = 2.0


@dataclass(frozen=True)
class TimedPair:
    """Two nodes, by their numbers, and how long they took in one launch of a round."""

    a: int
    b: int
    round: int
    time_s: float

    @property
    def link(self) -> tuple[int, int]:
        return min(self.a, self.b), max(self.a, self.b)


@dataclass(frozen=True)
class NamedSlow:
    """What is slow: one node, or a link's two; slower by that share, with its e-value's log."""

    nodes: tuple[int, ...]
    slower: float
    log_evidence: float


class Board:
    """Everything that was seen so far, and what follows from it."""

    def __init__(self, seen: Sequence[TimedPair], num_nodes: int, least: float) -> None:
        self.num_nodes, self._seen, self._least = num_nodes, seen, least
        self.round = max((pair_seen.round for pair_seen in seen), default=-1) + 1
        self._ends = np.array([pair_seen.link for pair_seen in seen], dtype=int).reshape(-1, 2)
        self._logs = _logs(seen)
        #: Rounds in which all nodes were measured, or most of them.
        self.full = sum(2 * n >= num_nodes // 2 for n in Counter(s.round for s in seen).values())
        self._of: dict[int, list[int]] = {n: [] for n in range(num_nodes)}
        self.times: dict[tuple[int, int], list[int]] = {}
        for i, pair_seen in enumerate(seen):
            self.times.setdefault(pair_seen.link, []).append(i)
            for node in pair_seen.link:
                self._of[node].append(i)

    @cached_property
    def slow_nodes(self) -> list[NamedSlow]:
        """Nodes that are slow, the surest first; what one did to its partners is not theirs.

        One that was sure after an earlier round stays so: evidence holds whenever one looks.
        """
        before = [s for s in self._seen if s.round < self.round - 1]
        earlier = Board(before, self.num_nodes, self._least) if self.round > FULL else None
        out = [] if earlier is None else [self._again(slow, earlier) for slow in earlier.slow_nodes]
        suspects = [*range(self.num_nodes)]
        limit = math.log(self.num_nodes / ALPHA)
        while suspects:
            named = {n for slow in out for n in slow.nodes}
            evidence = {n: self.of_node(n, named) for n in suspects if n not in named}
            suspects = [
                n for n, (log, slower) in evidence.items() if self._sure(log, slower, limit)
            ]
            if suspects:
                worst = max(suspects, key=lambda n: evidence[n][0])
                log, slower = evidence[worst]
                out.append(NamedSlow((worst,), math.expm1(slower), log))
        return out

    def _again(self, one: NamedSlow, earlier: "Board") -> NamedSlow:
        """A node that was named, with all that is known of it by now."""
        log, slower = self.of_node(one.nodes[0], earlier.found - {*one.nodes})
        return NamedSlow(one.nodes, math.expm1(slower), max(log, one.log_evidence))

    @cached_property
    def found(self) -> frozenset[int]:
        """Nodes that are named."""
        return frozenset(n for slow in self.slow_nodes for n in slow.nodes)

    @cached_property
    def slow_links(self) -> list[NamedSlow]:
        """Links that were slow more than once, between nodes that are well with others."""
        named = []
        limit = math.log(max(1, len(self.times)) / ALPHA)
        for link in self._doubted:
            log, slower = self._of_link(link)
            others = min(self._num_others(node, link) for node in link)
            again = len(self.times[link]) > 1 and others >= min(2, self.num_nodes - 2)
            if again and self._sure(log, slower, limit):
                named.append(NamedSlow(link, math.expm1(slower), log))
        return sorted(named, key=lambda one: -one.log_evidence)

    @cached_property
    def _doubted(self) -> dict[tuple[int, int], float]:
        """Links that may be slow: both their nodes are well without them."""
        evidence = {k: self._of_link(k)[0] for k in self.times if not {*k} & self.found}
        return {
            link: log
            for link, log in evidence.items()
            if log > math.log(DOUBTED)
            and all(self.of_node(n, self.found, without=link)[0] < 0 for n in link)
        }

    def _sure(self, log: float, slower: float, limit: float) -> bool:
        return log >= limit and math.expm1(slower) >= self._least

    @cached_property
    def _always_slow(self) -> frozenset[int]:
        """Nodes that were slow each time: were they noise to each other, none would be named."""
        limit = ALWAYS * 1.4826 * float(np.median(np.abs(self._logs))) if len(self._logs) else 0.0
        return frozenset(
            node
            for node, times in self._of.items()
            if len(times) > 1 and self._logs[times].min() > limit
        )

    def open_links(self) -> list[tuple[int, int]]:
        """Links to measure once more, with no node in two of them.

        In between, their nodes meet others: else a node that was lucky once is taken for a link.
        """
        known = {slow.nodes for slow in self.slow_links}
        links, apart = list[tuple[int, int]](), set[int]()
        for link in sorted(self._doubted, key=lambda k: -self._doubted[k]):
            others = min(self._num_others(node, link) for node in link)
            if link not in known and not {*link} & apart and len(self.times[link]) <= others:
                links.append(link)
                apart |= {*link}
        return links[: max(1, self.num_nodes // 4)]

    def suspects(self) -> list[int]:
        """Nodes that may be slow, or have a link that may be, and are not named yet."""
        evidence = {n: self.of_node(n, self.found)[0] for n in self._of if n not in self.found}
        known = {slow.nodes for slow in self.slow_links}
        linked = {n for link in self._doubted if link not in known for n in link}
        likely = [n for n in evidence if evidence[n] > math.log(SUSPECT) or n in linked]
        return sorted(likely, key=lambda n: -evidence[n])[: max(1, self.num_nodes // 4)]

    def smallest(self) -> float | None:
        """The smallest slowness that a node could not have hidden: with the noise of these rounds,
        it would have been named in ``SEEN`` of all cases. None where not even the largest.
        """
        return next((x for x in TRIED if x >= self._least and self.shows(x)), None)

    def shows(self, slower: float) -> bool:
        """Whether a node that is so much slower would have been named, in ``SEEN`` of all cases.

        Launches are drawn as they were measured, and made slower: a node is followed up as long as
        it may be slow, and named once that is sure.
        """
        logs = self._apart({*self.found, *self._always_slow})
        if not len(logs):
            return False
        random = np.random.default_rng(0)
        others = random.choice(logs, min(len(logs), OTHERS), replace=False)
        drawn = random.choice(logs, (TRIALS, LAUNCHES))
        missed = 0
        for times in drawn:
            missed += not self._names(times + math.log1p(slower), others)
            if missed > (1 - SEEN) * TRIALS:
                return False
        return True

    def _names(self, times: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
        """Whether a node with these log times would be named before it is let go."""
        limit = math.log(self.num_nodes / ALPHA)
        for num in range(min(max(FULL, self.full), len(times)), len(times) + 1):
            log, excess = log_evidence(times[:num], others, self._least)
            if self._sure(log, excess, limit):
                return True
            if log <= math.log(SUSPECT):
                return False
        return False

    def _partner(self, i: int, node: int) -> int:
        return sum(self._seen[i].link) - node

    def _num_others(self, node: int, link: tuple[int, int]) -> int:
        """Partners of a node beside that of a link."""
        return len({self._partner(i, node) for i in self._of[node]} - {*link})

    def of_node(
        self, node: int, found: Collection[int], without: tuple[int, int] | None = None
    ) -> tuple[float, float]:
        """Evidence of a node: one value for each partner, since a link may be what is slow."""
        by_partner: dict[int, list[float]] = {}
        for i in self._of[node]:
            link = self._seen[i].link
            partner = link[0] + link[1] - node
            if link != without and partner not in found:
                by_partner.setdefault(partner, []).append(self._logs[i])
        ratios = [float(np.mean(times)) for times in by_partner.values()]
        return log_evidence(ratios, self._apart({node, *found, *self._always_slow}), self._least)

    def _of_link(self, link: tuple[int, int]) -> tuple[float, float]:
        """Evidence of a link: every launch over it."""
        of_link = np.zeros(len(self._logs), dtype=bool)
        of_link[self.times[link]] = True
        others = ~of_link & ~np.isin(self._ends, list(self._always_slow)).any(axis=1)
        return log_evidence(self._logs[of_link], self._logs[others], self._least)

    def _apart(self, nodes: Collection[int]) -> NDArray[np.float64]:
        """What was seen of others than these."""
        theirs = np.zeros(self.num_nodes, dtype=bool)
        theirs[list(nodes)] = True
        return np.asarray(self._logs[~theirs[self._ends].any(axis=1)])


def conclude(seen: Sequence[TimedPair], num_nodes: int, least: float = LEAST) -> list[NamedSlow]:
    """The nodes and links that are slower by ``least`` or more, the surest first."""
    board = Board(seen, num_nodes, least)
    return board.slow_nodes + board.slow_links


def smallest(seen: Sequence[TimedPair], num_nodes: int, least: float = LEAST) -> float | None:
    """As ``Board.smallest``."""
    return Board(seen, num_nodes, least).smallest()


def pairs(
    seen: Sequence[TimedPair],
    num_nodes: int,
    seed: int,
    least: float = LEAST,
    wanted: float | None = None,
) -> list[tuple[int, int]]:
    """The next round's pairs; none when nothing is left to find. ``wanted`` is the slowness that no
    node may hide: all are measured again until it would show. None asks for two such rounds, as
    records of before do.
    """
    board = Board(seen, num_nodes, least)
    draw = random.Random(f"{seed}-{board.round}")
    nodes = list(range(num_nodes))
    if board.round < FULL or (wanted is not None and not board.shows(wanted)):
        if num_nodes < FEW:
            return list(itertools.combinations(nodes, 2))
        draw.shuffle(nodes)
        met = Counter(n for s in seen for n in s.link)
        return _matched(sorted(nodes, key=met.__getitem__), board)  # an odd one was left out
    links, suspects = board.open_links(), board.suspects()
    if not links and not suspects:
        return []
    if num_nodes < FEW:
        return list(itertools.combinations(nodes, 2))
    draw.shuffle(nodes)
    apart = {n for link in links for n in link}
    first = [n for n in suspects if n not in apart]
    well = [n for n in nodes if n not in apart | {*suspects} | board.found]
    rest = _matched([*first, *well], board, {*well})
    return links + rest[: len(first) + max(BESIDE, len(first) + len(links))]


def _matched(
    nodes: Sequence[int], board: Board, partners: Collection[int] = frozenset()
) -> list[tuple[int, int]]:
    """Pairs in this order, each with a partner (any node if none are named) that is new to it."""
    free = dict.fromkeys(nodes)
    matched = list[tuple[int, int]]()
    for node in nodes:
        if node not in free:
            continue
        del free[node]
        others = (n for n in free if not partners or n in partners)
        first = next(others, None)
        fresh = (n for n in others if (min(node, n), max(node, n)) not in board.times)
        met = first is not None and (min(node, first), max(node, first)) in board.times
        other = next(fresh, first) if met else first
        if other is not None:
            del free[other]
            matched.append((node, other))
    return matched


def _logs(seen: Sequence[TimedPair]) -> NDArray[np.float64]:
    """Log times, less what the round did to all."""
    logs: NDArray[np.float64] = np.array([math.log(s.time_s) for s in seen])
    rounds = np.array([s.round for s in seen])
    usual = float(np.median(logs)) if len(logs) else 0.0
    for number in {*rounds.tolist()}:
        of_round = rounds == number
        logs[of_round] -= float(np.median(logs[of_round])) if of_round.sum() >= COMMON else usual
    return logs
