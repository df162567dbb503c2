"""Isolation: the fewest nodes on which a launch breaks or hangs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harness.analysis.packing import Placement
from harness.base.errors import LaunchError, SpecError
from harness.cases import CaseSpec, Site
from harness.cases.recipes import paired
from harness.features.nodes import pairing
from harness.measure.measurer import moment
from harness.measure.order import Order
from harness.measure.session import Session
from harness.record import Purpose


class Isolator:
    """Trains a case for some steps on the nodes that are asked for."""

    def __init__(self, session: Session, site: Site, case: CaseSpec, steps: int) -> None:
        self._session = session
        self._site = site
        self._case = case
        self._steps = steps
        self._launches = 0
        session.ready()
        self.hosts = pairing.hosts([node.host for node in session.run.nodes], len(site.nodes))
        #: What the last launch that broke said of it.
        self.why = ""

    def breaks(self, nodes: Sequence[int]) -> bool:
        """Whether one launch on these nodes broke; SpecError if so few cannot train the case."""
        session = self._session
        sizes = tuple(self._site.nodes[node] for node in nodes)
        plan = paired(self._case.at(sum(sizes), sizes))
        plan = replace(plan, protocol=replace(plan.protocol, steps=self._steps, cut=0))
        session.describe([plan.arms[0].case])
        described = session.run.described[plan.arms[0].case.hash]
        if reason := described.unsupported or described.error:
            raise SpecError(
                reason,
                where=plan.arms[0].case.id,
                expected="a case that any number of these nodes can train",
                fix="scaleproof network isolate --case ddp/decoder-nano",
            )
        session.run.announce([plan])
        order = Order(
            plan=plan,
            arm=plan.arms[0],
            purpose=Purpose.ROUND,
            window=plan.window,
            turn=self._launches,
            seat=Placement(tuple(nodes), ()),
        )
        self._launches += 1
        now = moment(session, order, {}, [])
        try:
            (launch,) = session.launch([order], now)
        except LaunchError as error:
            return self._broke(nodes, error.what)
        if launch.cause is not None:
            return self._broke(nodes, launch.cause.message)
        return False

    def _broke(self, nodes: Sequence[int], why: str) -> bool:
        self.why = why
        hosts = ", ".join(self.hosts[node] for node in nodes)
        self._session.progress.note(f"{hosts}: {why}")
        return True


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
