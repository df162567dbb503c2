"""Rounds: which nodes are paired next, and which of them are named.

    rounds 0, 1   every node, each time with another partner that is drawn
    then          every node that may still be slower by what is wanted: a node that is let go was
                  slow in ``MISSED`` of all cases at most; pairs of well nodes beside them;
                  once more, links that were slow between nodes that are well
    named         a node by what it was with all its partners, a link by what it was each time

So a world whose launches scatter gets more rounds, of ever fewer nodes. Fewer than ``FEW`` nodes
meet all others in every round. A link is seen only if it was drawn.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from harness.features.nodes.evidence import SLOWER, Scatter, log_evidence, log_mean

#: Chance that any node or link is named wrongly, of all together.
ALPHA = 0.01
#: Chance that a node is let go that is slower by what is wanted.
MISSED = 0.005
#: Under this many nodes, all pairs are measured in each round.
FEW = 8
#: Rounds in which every node is measured.
FULL = 2
#: Rounds after which a node that no launch ended well on is not tried again.
TRIES = 4
#: Pairs in a round from which on their median is what the round itself did to all of them.
COMMON = 6
#: e-value of a link that is measured again.
DOUBTED = 20.0
#: By which share a node is slower that is worth naming.
LEAST_SLOWER = 0.01
#: Deviations beyond which a node that is there each time is no measure of noise.
ALWAYS = 2.0
#: Pairs of well nodes beside the suspects.
BESIDE = 24
#: Slowness that is tried on what was measured, how often, and in what share it has to be seen.
TRIED = (0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
TRIALS = 400
SEEN = 0.99
#: Rounds at most: what scatters by as much as a node is slower needs so many launches of it.
MOST_ROUNDS = 32
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
    """A slow node, or a link's two; slower by that share, with its e-value's log."""

    nodes: tuple[int, ...]
    slower: float
    log_evidence: float


class Board:
    """Everything that was seen so far, and what follows from it.

    Something slower by ``least`` is named once that is sure; a node that is slower by ``wanted``
    may not hide.
    """

    def __init__(
        self, seen: Sequence[TimedPair], num_nodes: int, least: float, wanted: float
    ) -> None:
        self.num_nodes = num_nodes
        self._least = least
        self._wanted = wanted
        self._seen = tuple(seen)
        self.round = max((pair_seen.round for pair_seen in seen), default=-1) + 1
        self._ends = np.array([pair_seen.link for pair_seen in seen], dtype=int).reshape(-1, 2)
        self._logs = _logs(seen)
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
        out = list[NamedSlow]()
        if (earlier := self._earlier) is not None:
            out = [self._again(slow, earlier) for slow in earlier.slow_nodes]
        suspects = [n for n in self._of if self._slower(self._of[n])]
        limit = math.log(self.num_nodes / ALPHA)
        while suspects:
            named = {node for slow in out for node in slow.nodes}
            evidence = {
                suspect: self.of_node(suspect, named)
                for suspect in suspects
                if suspect not in named
            }
            suspects = [
                n for n, (log, slower) in evidence.items() if self._sure(log, slower, limit)
            ]
            if suspects:
                worst = max(suspects, key=lambda n: evidence[n][0])
                log, slower = evidence[worst]
                out.append(NamedSlow((worst,), math.expm1(slower), log))
        return out

    @cached_property
    def _earlier(self) -> "Board | None":
        """The evidence before the last round, if all nodes had been measured."""
        if self.round <= FULL:
            return None
        before = tuple(pair for pair in self._seen if pair.round < self.round - 1)
        return board(before, self.num_nodes, self._least, self._wanted)

    def _slower(self, launches: Sequence[int]) -> bool:
        """Whether launches were slower than usual at all: else there is no evidence to weigh."""
        half = math.log1p(self._least) / 2  # what is usual is not known exactly
        return bool(launches) and float(np.median(self._logs[launches])) >= half

    def _again(self, slow: NamedSlow, earlier: "Board") -> NamedSlow:
        """A node that was named, with all that is known of it by now."""
        log, slower = self.of_node(slow.nodes[0], earlier.named - {*slow.nodes})
        return NamedSlow(slow.nodes, math.expm1(slower), max(log, slow.log_evidence))

    @cached_property
    def named(self) -> frozenset[int]:
        """Nodes that are named."""
        return frozenset(node for slow in self.slow_nodes for node in slow.nodes)

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
        return sorted(named, key=lambda slow: -slow.log_evidence)

    @cached_property
    def _doubted(self) -> dict[tuple[int, int], float]:
        """Links that may be slow: both their nodes are well without them."""
        likely = [
            key for key, i in self.times.items() if self._slower(i) and not {*key} & self.named
        ]
        evidence = {link: self._of_link(link)[0] for link in likely}
        return {
            link: log
            for link, log in evidence.items()
            if log > math.log(DOUBTED)
            and all(self.of_node(n, self.named, without=link)[0] < 0 for n in link)
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
        links = list[tuple[int, int]]()
        apart = set[int]()
        for link in sorted(self._doubted, key=lambda k: -self._doubted[k]):
            others = min(self._num_others(node, link) for node in link)
            if link not in known and not {*link} & apart and len(self.times[link]) <= others:
                links.append(link)
                apart |= {*link}
        return links[: max(1, self.num_nodes // 4)]

    @cached_property
    def open_nodes(self) -> list[int]:
        """Nodes that are not named and may be slower by what is wanted, the likeliest first.

        One that was let go is looked at anew when it was measured anew, as another's partner. A
        node that no launch ended well on in ``TRIES`` rounds is not among them.
        """
        likely = dict[int, float]()
        again = {n for pair in self._seen if pair.round == self.round - 1 for n in pair.link}
        for node in self._of if self._earlier is None else again | {*self._earlier.open_nodes}:
            tried = self._of[node] or self.round < TRIES
            if tried and node not in self.named:
                log = self._of_wanted(node)
                if log > math.log(MISSED):
                    likely[node] = log
        return sorted(likely, key=lambda n: -likely[n])

    def suspects(self) -> list[int]:
        """Nodes to measure again: those that are open, and those of a link that may be slow."""
        known = {slow.nodes for slow in self.slow_links}
        linked = {n for link in self._doubted if link not in known for n in link}
        return [*self.open_nodes, *sorted(linked - {*self.open_nodes} - self.named)]

    def smallest(self, most: int) -> float | None:
        """The smallest slowness that a node could not have hidden: with the noise of these rounds,
        it would have been named in ``SEEN`` of all cases after ``most`` rounds. None where not even
        the largest.
        """
        tried = (x for x in TRIED if x >= self._least)
        return next((slower for slower in tried if self.shows(slower, most)), None)

    def shows(self, slower: float, most: int) -> bool:
        """Whether a node that is so much slower would have been named, in ``SEEN`` of all cases.

        Launches are drawn as they were measured, and made slower: a node is followed up as long as
        it may be slow, and named once that is sure.
        """
        logs = self._apart({*self.named, *self._always_slow})
        if not len(logs):
            return False
        noise = Scatter(logs)
        draw = np.random.default_rng(0)
        limit = math.log(self.num_nodes / ALPHA)
        hidden = self._tried >= math.log1p(self._wanted)
        times = np.empty((TRIALS, 0))  # of the nodes that are followed up still
        ratios = np.zeros((TRIALS, len(self._tried)))
        missed = 0
        for num in range(1, min(most, self.num_nodes - 1) + 1):
            drawn = draw.choice(logs, len(times)) + math.log1p(slower)
            times = np.column_stack([times, drawn - noise.centre])
            ratios += noise.log_ratios(drawn, self._tried)
            if num < FULL:
                continue
            evidence = np.array([log_mean(of_node) for of_node in ratios])
            enough = np.expm1(np.median(times, axis=1)) >= self._least
            go_on = ~(enough & (evidence >= limit))
            lost = go_on & (ratios[:, hidden].max(axis=1) <= math.log(MISSED))
            missed += int(lost.sum())
            times, ratios = times[go_on & ~lost], ratios[go_on & ~lost]
            if not len(times) or missed > (1 - SEEN) * TRIALS:
                break
        return missed + len(times) <= (1 - SEEN) * TRIALS

    @cached_property
    def _tried(self) -> NDArray[np.float64]:
        """How much slower a node may be, as logarithms, from what is worth naming upwards."""
        ladder = SLOWER[math.log1p(self._least) <= SLOWER]
        return np.unique([math.log1p(self._wanted), *ladder])

    def _partner(self, i: int, node: int) -> int:
        return sum(self._seen[i].link) - node

    def _num_others(self, node: int, link: tuple[int, int]) -> int:
        """Partners of a node beside that of a link."""
        return len({self._partner(i, node) for i in self._of[node]} - {*link})

    def of_node(
        self, node: int, nodes: Collection[int], without: tuple[int, int] | None = None
    ) -> tuple[float, float]:
        """Evidence that a node is slow, and by how much."""
        times = self._by_partner(node, nodes, without)
        return log_evidence(times, self._apart({node, *nodes, *self._always_slow}), self._least)

    def _of_wanted(self, node: int) -> float:
        """Log of how much likelier a node is slower by what is wanted, or by more, than well."""
        times = self._by_partner(node, self.named)
        others = self._apart({node, *self.named, *self._always_slow})
        if not len(times) or not len(others):
            return 0.0
        hidden = self._tried[self._tried >= math.log1p(self._wanted)]
        return float(Scatter(others).log_ratios(times, hidden).sum(axis=0).max())

    def _by_partner(
        self, node: int, nodes: Collection[int], without: tuple[int, int] | None = None
    ) -> list[float]:
        """Log times of a node: one value for each partner, since a link may be what is slow."""
        by_partner: dict[int, list[float]] = {}
        for i in self._of[node]:
            link = self._seen[i].link
            partner = link[0] + link[1] - node
            if link != without and partner not in nodes:
                by_partner.setdefault(partner, []).append(self._logs[i])
        return [float(np.mean(times)) for times in by_partner.values()]

    def _of_link(self, link: tuple[int, int]) -> tuple[float, float]:
        """Evidence of a link: every launch over it."""
        of_link = np.zeros(len(self._logs), dtype=bool)
        of_link[self.times[link]] = True
        others = ~of_link & ~np.isin(self._ends, list(self._always_slow)).any(axis=1)
        return log_evidence(self._logs[of_link], self._logs[others], self._least)

    def _apart(self, nodes: Collection[int]) -> NDArray[np.float64]:
        """The evidence on other nodes than these."""
        theirs = np.zeros(self.num_nodes, dtype=bool)
        theirs[list(nodes)] = True
        return np.asarray(self._logs[~theirs[self._ends].any(axis=1)])


@lru_cache(maxsize=2 * MOST_ROUNDS)
def board(seen: tuple[TimedPair, ...], num_nodes: int, least: float, wanted: float) -> Board:
    """The conclusions from these rounds: asked for anew with every round that is added."""
    return Board(seen, num_nodes, least, wanted)


def conclude(
    seen: Sequence[TimedPair], num_nodes: int, least: float = LEAST_SLOWER
) -> list[NamedSlow]:
    """The nodes and links that are slower by ``least`` or more, the surest first."""
    known = board(tuple(seen), num_nodes, least, WANTED * least)
    return known.slow_nodes + known.slow_links


def pairs(
    seen: Sequence[TimedPair], num_nodes: int, seed: int, least: float = LEAST_SLOWER
) -> list[tuple[int, int]]:
    """The next round's pairs; none when nothing is left to find: every node that is slower by
    ``WANTED`` times ``least`` is named.
    """
    known = board(tuple(seen), num_nodes, least, WANTED * least)
    draw = random.Random(f"{seed}-{known.round}")
    nodes = list(range(num_nodes))
    full = known.round < FULL
    links, suspects = ([], []) if full else (known.open_links(), known.suspects())
    if not full and not links and not suspects:
        return []
    if num_nodes < FEW:
        return list(itertools.combinations(nodes, 2))
    draw.shuffle(nodes)
    if full:
        met = Counter(n for pair in seen for n in pair.link)
        return _matched(sorted(nodes, key=met.__getitem__), known)  # an odd one was left out
    apart = {n for link in links for n in link}
    first = [suspect for suspect in suspects if suspect not in apart]
    well = [node for node in nodes if node not in apart | {*suspects} | known.named]
    rest = _matched([*first, *well], known, {*well})
    return links + rest[: len(first) + max(BESIDE, len(first) + len(links))]


def _matched(
    nodes: Sequence[int], known: Board, partners: Collection[int] = frozenset()
) -> list[tuple[int, int]]:
    """Pairs in this order, each with a partner that is new to it: with one of ``partners`` as long
    as one is free, else with any.
    """
    free = dict.fromkeys(nodes)
    matched = list[tuple[int, int]]()
    for node in nodes:
        if node not in free:
            continue
        del free[node]
        preferred = [n for n in free if n in partners] or [*free]
        fresh = (n for n in preferred if (min(node, n), max(node, n)) not in known.times)
        other = next(fresh, preferred[0] if preferred else None)
        if other is not None:
            del free[other]
            matched.append((node, other))
    return matched


def _logs(seen: Sequence[TimedPair]) -> NDArray[np.float64]:
    """Log times, less what the round did to all."""
    logs: NDArray[np.float64] = np.array([math.log(pair.time_s) for pair in seen])
    rounds = np.array([pair.round for pair in seen])
    usual = float(np.median(logs)) if len(logs) else 0.0
    for number in {*rounds.tolist()}:
        of_round = rounds == number
        logs[of_round] -= float(np.median(logs[of_round])) if of_round.sum() >= COMMON else usual
    return logs
