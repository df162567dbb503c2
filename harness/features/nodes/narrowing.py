"""Narrowing: the fewest nodes on which a launch breaks or hangs.

    all nodes, until they broke ``BREAKS`` times: how often a launch breaks that can
    -> a set of nodes is launched until it surely breaks as often, or no more than by flakes
    -> bisect the list for its last node that is needed, then for the one before, and so on
    -> each of them left out in its turn, and all others without them

Either is held for true at odds of 1 to ``WRONG`` (Wald's sequential test), so one break, which may
be a flake, decides nothing. Who needs k of n nodes takes about k log2 n sets (as QuickXplain does:
Junker, AAAI 2004); leaving each out checks that none is named in vain.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: Launches that break before it is known how often one does, and launches in which they have to.
BREAKS = 3
AT_MOST = 20
#: Of what breaks in a lower share of launches no set is told apart from flakes. None breaks surely.
SELDOM = 0.2
MOST_OFTEN = 0.75
#: Chance that a set which breaks is held to be well, or one that is well to break.
WRONG = 0.005
#: Share of launches that break although nothing is wrong with their nodes.
FLAKES = 0.02

#: Nodes, by their numbers -> whether one launch on them broke.
Launch = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class TriedSet:
    """A set of nodes, and how many launches on it broke."""

    nodes: tuple[int, ...]
    broke: int
    launches: int
    breaks: bool


@dataclass
class Narrowing:
    """Which of ``nodes`` a launch needs to break; every set is tried once."""

    nodes: Sequence[int]
    launch: Launch
    #: Sets in the order in which they were tried.
    tried: list[TriedSet] = field(default_factory=list)
    #: In what share of launches a set breaks that does.
    share: float = 1.0

    def needed(self) -> tuple[int, ...]:
        """The fewest nodes that break: none if all of them hardly do. Without any of them, the
        others of them are well.
        """
        if not self._measured():
            return ()
        fewest = self._bisected()
        for node in fewest if len(fewest) > 1 else []:
            without = [other for other in fewest if other != node]
            if self.breaks(without):
                fewest = without
        return tuple(sorted(fewest))

    def others(self, needed: Sequence[int]) -> bool | None:
        """Whether the nodes without these break as well; None if there are no others."""
        rest = [node for node in self.nodes if node not in needed]
        return self.breaks(rest) if rest else None

    def breaks(self, nodes: Sequence[int]) -> bool:
        """Whether these nodes break; they are launched until that is sure."""
        wanted = tuple(sorted(nodes))
        known = next((tried for tried in self.tried if tried.nodes == wanted), None)
        if known is None:
            known = self._try(wanted)
        return known.breaks

    def _measured(self) -> bool:
        """Launch all nodes until they broke often enough to say how often they do."""
        broke = launches = 0
        while broke < BREAKS and launches < AT_MOST:
            broke += self.launch(tuple(self.nodes))
            launches += 1
        # Launches ended with the last break: without it their share is unbiased.
        self.share = min((broke - 1) / max(1, launches - 1), MOST_OFTEN)
        often = broke >= BREAKS and self.share >= SELDOM
        self.tried.append(TriedSet(tuple(self.nodes), broke, launches, often))
        return self.tried[-1].breaks

    def _try(self, nodes: tuple[int, ...]) -> TriedSet:
        broke = launches = 0
        odds = 0.0
        sure = -math.log(WRONG)
        while abs(odds) < sure:
            failed = self.launch(nodes)
            launches += 1
            broke += failed
            ratio = self.share / FLAKES if failed else (1 - self.share) / (1 - FLAKES)
            odds += math.log(ratio)
        self.tried.append(TriedSet(nodes, broke, launches, odds > 0))
        return self.tried[-1]

    def _bisected(self) -> list[int]:
        """Nodes that break together, each found as the last one that those before it need."""
        needed = list[int]()
        rest = [*self.nodes]
        while rest and not (needed and self.breaks(needed)):
            well = 0  # of the first so many of the rest, beside those that are needed
            breaks = len(rest)
            while breaks - well > 1:
                middle = (well + breaks) // 2
                if self.breaks([*needed, *rest[:middle]]):
                    breaks = middle
                else:
                    well = middle
            needed.append(rest[breaks - 1])
            rest = rest[: breaks - 1]
        return needed
