"""Choose the pairs of the next round, and decide which nodes and links are reported as slow.

A node or link that is reported as slow is called named. Slowness is relative to the usual time.

    rounds 0, 1   Every node is measured, each time with a new random partner.
    then          Every node that may still be slower by ``wanted`` is paired with nodes that are
                  not slow. The probability that a node is dropped although it is slower by
                  ``wanted`` is at most ``MISSED``. Links that may be slow although both of their
                  nodes are fast are measured again.
    named         A node is named by its launches with all its partners, and a link by all of its
                  launches.

If launches scatter more, more rounds are needed, each with fewer nodes than the one before. With
fewer than ``FEW`` nodes, every round measures all pairs. A slow link is found only if its two nodes
were paired.
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

#: Probability that a node or link is named although it is not slow, over all nodes and links.
ALPHA = 0.01
#: Probability that a node is not measured any more although it is slower by ``wanted``.
MISSED = 0.005
#: With fewer nodes than this, each round measures all pairs.
FEW = 8
#: Number of first rounds in which every node is measured.
FULL = 2
#: Rounds after which a node without a successful launch is not tried again.
TRIES = 4
#: The median of a round with at least this many pairs is taken as the effect of the round on all of
#: its pairs.
COMMON = 6
#: A link is measured again if its e-value is at least this.
DOUBTED = 20.0
#: Smallest relative slowness for which a node is named.
LEAST_SLOWER = 0.01
#: A node is left out of the estimate of the noise if all of its launches are slower than usual by
#: more than this many standard deviations.
ALWAYS = 2.0
#: Smallest number of additional pairs in a round, which consist of nodes that are not suspected.
BESIDE = 24
#: Parameters of the simulation that determines how slow a node must be to be found: the relative
#: slowness values that are tried, the number of simulated nodes for each, and the share of them
#: that must be found.
TRIED = (0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
TRIALS = 400
SEEN = 0.99
#: Largest number of rounds. A node needs about so many launches if its slowness is no larger than
#: the scatter of launches.
MOST_ROUNDS = 32
#: Ratio of two limits of the relative slowness of a node, ``wanted`` to ``least``. A node that is
#: slower by ``wanted`` must be found, and a node that is slower by less than ``least`` is never
#: reported as slow.
WANTED = 2.0


@dataclass(frozen=True)
class TimedPair:
    """Two nodes, given by their numbers, and their time in seconds in one launch of a round."""

    a: int
    b: int
    round: int
    time_s: float

    @property
    def link(self) -> tuple[int, int]:
        """The numbers of the two nodes, the smaller first."""
        return min(self.a, self.b), max(self.a, self.b)


@dataclass(frozen=True)
class NamedSlow:
    """A slow node, or the two nodes of a slow link.

    ``slower`` is the relative slowness and ``log_evidence`` the logarithm of the e-value.
    """

    nodes: tuple[int, ...]
    slower: float
    log_evidence: float


class Board:
    """All pairs measured so far, and the conclusions from them.

    A node or link is named if it is slower by ``least`` and the evidence suffices. Nodes are
    measured until no unnamed node may be slower by ``wanted``.
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
        """The slow nodes, with the strongest evidence first.

        Launches with a named node are not evidence against its partners. A node that was named
        after an earlier round remains named, because an e-value may be inspected at any time.
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
        """The evidence before the last round, or None if not all nodes had been measured
        by then.
        """
        if self.round <= FULL:
            return None
        before = tuple(pair for pair in self._seen if pair.round < self.round - 1)
        return board(before, self.num_nodes, self._least, self._wanted)

    def _slower(self, launches: Sequence[int]) -> bool:
        """Return whether the median of these launches is so slow that evidence must be computed."""
        half = math.log1p(self._least) / 2  # half, because the usual time is only an estimate
        return bool(launches) and float(np.median(self._logs[launches])) >= half

    def _again(self, slow: NamedSlow, earlier: "Board") -> NamedSlow:
        """Return a node that was named earlier, with the evidence of all rounds."""
        log, slower = self.of_node(slow.nodes[0], earlier.named - {*slow.nodes})
        return NamedSlow(slow.nodes, math.expm1(slower), max(log, slow.log_evidence))

    @cached_property
    def named(self) -> frozenset[int]:
        """The numbers of the nodes that are named as slow."""
        return frozenset(node for slow in self.slow_nodes for node in slow.nodes)

    @cached_property
    def slow_links(self) -> list[NamedSlow]:
        """The links that were slow more than once, between nodes that are not slow with other
        partners.
        """
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
        """The links that may be slow, with the logarithm of their evidence.

        Both nodes of such a link are fast in their launches over other links.
        """
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
        """Return whether evidence and slowness suffice to name a node or link."""
        return log >= limit and math.expm1(slower) >= self._least

    @cached_property
    def _always_slow(self) -> frozenset[int]:
        """The nodes that were slow in every launch.

        They are left out of the estimate of the noise. Otherwise several slow nodes would make the
        noise so wide that none of them is found.
        """
        limit = ALWAYS * 1.4826 * float(np.median(np.abs(self._logs))) if len(self._logs) else 0.0
        return frozenset(
            node
            for node, times in self._of.items()
            if len(times) > 1 and self._logs[times].min() > limit
        )

    def open_links(self) -> list[tuple[int, int]]:
        """Return the links to measure once more. Each node is in at most one of these links.

        A link is measured again only after its nodes were paired with other nodes at least as
        often. Otherwise the link would seem to be slow if a slow node had a single fast launch.
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
        """The nodes that are not named but may be slower by ``wanted``, the likeliest first.

        A node that was dropped earlier is considered again if it was measured again as the partner
        of another node. A node without a successful launch in ``TRIES`` rounds is left out.
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
        """Return the nodes to measure again: open nodes, and the nodes of links that may
        be slow.
        """
        known = {slow.nodes for slow in self.slow_links}
        linked = {n for link in self._doubted if link not in known for n in link}
        return [*self.open_nodes, *sorted(linked - {*self.open_nodes} - self.named)]

    def smallest(self, most: int) -> float | None:
        """Return the smallest relative slowness with which a node would have been named.

        With the noise of these rounds, a node that is slower by this is named within ``most``
        rounds with probability ``SEEN``. Return None if this is true of no tried slowness.
        """
        tried = (x for x in TRIED if x >= self._least)
        return next((slower for slower in tried if self.shows(slower, most)), None)

    def shows(self, slower: float, most: int) -> bool:
        """Return whether a node that is slower by this is named with probability ``SEEN``.

        This is simulated: measured launches are drawn at random and slowed. A simulated node is
        measured until it is named or dropped, as in the real rounds.
        """
        logs = self._apart({*self.named, *self._always_slow})
        if not len(logs):
            return False
        noise = Scatter(logs)
        draw = np.random.default_rng(0)
        limit = math.log(self.num_nodes / ALPHA)
        hidden = self._tried >= math.log1p(self._wanted)
        times = np.empty((TRIALS, 0))  # times of the simulated nodes that are still undecided
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
        """The hypotheses on how much slower a node is, as logarithms.

        They are the values from ``least`` upwards, and ``wanted``.
        """
        ladder = SLOWER[math.log1p(self._least) <= SLOWER]
        return np.unique([math.log1p(self._wanted), *ladder])

    def _partner(self, i: int, node: int) -> int:
        """Return the partner of a node in a launch."""
        return sum(self._seen[i].link) - node

    def _num_others(self, node: int, link: tuple[int, int]) -> int:
        """Return the number of partners of a node that are not in the link."""
        return len({self._partner(i, node) for i in self._of[node]} - {*link})

    def of_node(
        self, node: int, nodes: Collection[int], without: tuple[int, int] | None = None
    ) -> tuple[float, float]:
        """Return (log e-value, log of the slowness) of a node.

        Launches with the slow ``nodes`` and launches over the link ``without`` are not used.
        """
        times = self._by_partner(node, nodes, without)
        return log_evidence(times, self._apart({node, *nodes, *self._always_slow}), self._least)

    def _of_wanted(self, node: int) -> float:
        """Return a log likelihood ratio of two hypotheses about a node.

        The first is that the node is slower by ``wanted`` or more, and the second that it is not
        slow.
        """
        times = self._by_partner(node, self.named)
        others = self._apart({node, *self.named, *self._always_slow})
        if not len(times) or not len(others):
            return 0.0
        hidden = self._tried[self._tried >= math.log1p(self._wanted)]
        return float(Scatter(others).log_ratios(times, hidden).sum(axis=0).max())

    def _by_partner(
        self, node: int, nodes: Collection[int], without: tuple[int, int] | None = None
    ) -> list[float]:
        """Return one mean log time of a node for each of its partners.

        A slow link then counts as a single time, however often it was measured.
        """
        by_partner: dict[int, list[float]] = {}
        for i in self._of[node]:
            link = self._seen[i].link
            partner = link[0] + link[1] - node
            if link != without and partner not in nodes:
                by_partner.setdefault(partner, []).append(self._logs[i])
        return [float(np.mean(times)) for times in by_partner.values()]

    def _of_link(self, link: tuple[int, int]) -> tuple[float, float]:
        """Return (log e-value, log of the slowness) of a link, from every launch over it."""
        of_link = np.zeros(len(self._logs), dtype=bool)
        of_link[self.times[link]] = True
        others = ~of_link & ~np.isin(self._ends, list(self._always_slow)).any(axis=1)
        return log_evidence(self._logs[of_link], self._logs[others], self._least)

    def _apart(self, nodes: Collection[int]) -> NDArray[np.float64]:
        """Return the logarithms of the times of all launches in which none of these nodes ran."""
        theirs = np.zeros(self.num_nodes, dtype=bool)
        theirs[list(nodes)] = True
        return np.asarray(self._logs[~theirs[self._ends].any(axis=1)])


@lru_cache(maxsize=2 * MOST_ROUNDS)
def board(seen: tuple[TimedPair, ...], num_nodes: int, least: float, wanted: float) -> Board:
    """Return the conclusions from these pairs.

    They are cached, because several functions need them after every round.
    """
    return Board(seen, num_nodes, least, wanted)


def conclude(
    seen: Sequence[TimedPair], num_nodes: int, least: float = LEAST_SLOWER
) -> list[NamedSlow]:
    """Return the nodes and links that are slower by ``least`` or more, with the strongest evidence
    first.
    """
    known = board(tuple(seen), num_nodes, least, WANTED * least)
    return known.slow_nodes + known.slow_links


def pairs(
    seen: Sequence[TimedPair], num_nodes: int, seed: int, least: float = LEAST_SLOWER
) -> list[tuple[int, int]]:
    """Return the pairs of the next round, or an empty list if every node is decided.

    A node is decided if it is named, or not slower by ``WANTED`` times ``least``.
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
        # If the number of nodes is odd, one node had no partner in the earlier round. It comes
        # first now.
        return _matched(sorted(nodes, key=met.__getitem__), known)
    apart = {n for link in links for n in link}
    first = [suspect for suspect in suspects if suspect not in apart]
    well = [node for node in nodes if node not in apart | {*suspects} | known.named]
    rest = _matched([*first, *well], known, {*well})
    return links + rest[: len(first) + max(BESIDE, len(first) + len(links))]


def _matched(
    nodes: Sequence[int], known: Board, partners: Collection[int] = frozenset()
) -> list[tuple[int, int]]:
    """Return pairs of these nodes in this order.

    Each node gets a free partner, preferably one of ``partners`` and one with which it was not
    measured before.
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
    """Return the logarithms of the times of launches, without the effect of their round.

    This effect is the median of the round, or the median of all launches if the round has few
    pairs.
    """
    logs: NDArray[np.float64] = np.array([math.log(pair.time_s) for pair in seen])
    rounds = np.array([pair.round for pair in seen])
    usual = float(np.median(logs)) if len(logs) else 0.0
    for number in {*rounds.tolist()}:
        of_round = rounds == number
        logs[of_round] -= float(np.median(logs[of_round])) if of_round.sum() >= COMMON else usual
    return logs
