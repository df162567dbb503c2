"""Find the smallest set of nodes on which a launch breaks (fails or hangs)."""

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
    """Trains a case for some steps on a chosen set of nodes."""

    def __init__(self, session: Session, site: Site, case: CaseSpec, steps: int) -> None:
        self._session = session
        self._site = site
        self._case = case
        self._steps = steps
        self._launches = 0
        session.ready()
        self.hosts = pairing.hosts([node.host for node in session.run.nodes], len(site.nodes))
        #: Error message of the last launch that broke.
        self.why = ""

    def breaks(self, nodes: Sequence[int]) -> bool:
        """Return whether one launch on these nodes broke.

        Raise SpecError if the case cannot be trained on this number of nodes.
        """
        session = self._session
        sizes = tuple(self._site.nodes[node] for node in nodes)
        plan = paired(self._case.at(sum(sizes), sizes))
        plan = replace(plan, protocol=replace(plan.protocol, steps=self._steps, cut=0))
        session.describe([plan.arms[0].case])
        described = session.run.described[plan.arms[0].case.hash]
        if reason := described.refused:
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
        """Report a broken launch to the progress display, and return True."""
        self.why = why
        hosts = ", ".join(self.hosts[node] for node in nodes)
        self._session.progress.note(f"{hosts}: {why}")
        return True


#: The share of launches that break is estimated by launching on all nodes until BREAKS launches
#: broke, but at most AT_MOST times.
BREAKS = 3
AT_MOST = 20
#: Smallest and largest share of broken launches that are assumed for a set that breaks. Below the
#: smallest one, the set cannot be distinguished from working nodes (FLAKES). The largest one is
#: below 1, because no set is known to break in every launch.
SELDOM = 0.2
MOST_OFTEN = 0.75
#: Probability of a wrong decision on a set of nodes. It is the same for both decisions.
WRONG = 0.005
#: Share of launches that break although their nodes work (flakes).
FLAKES = 0.02

#: A function that launches on the nodes with these numbers and returns whether the launch broke.
Launch = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class TriedSet:
    """A set of nodes on which training was launched.

    ``launches`` is the number of launches on the set, and ``broke`` the number of those that broke.
    ``breaks`` is the decision whether the set breaks.
    """

    nodes: tuple[int, ...]
    broke: int
    launches: int
    breaks: bool


@dataclass
class Narrowing:
    """The search for a smallest set of nodes that breaks. No set is tried twice."""

    nodes: Sequence[int]
    launch: Launch
    #: The sets in the order in which they were tried.
    tried: list[TriedSet] = field(default_factory=list)
    #: Share of launches that break on a set of nodes that breaks. It is assumed to be the same for
    #: all of these sets.
    share: float = 1.0

    def needed(self) -> tuple[int, ...]:
        """Return a smallest set of nodes that breaks: without any one of them, it does not break.

        Return an empty tuple if launches on all nodes break too rarely.
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
        """Return whether the remaining nodes break as well, or None if there are none."""
        rest = [node for node in self.nodes if node not in needed]
        return self.breaks(rest) if rest else None

    def breaks(self, nodes: Sequence[int]) -> bool:
        """Return whether these nodes break.

        Training is launched on them until the decision is certain enough.
        """
        wanted = tuple(sorted(nodes))
        known = next((tried for tried in self.tried if tried.nodes == wanted), None)
        if known is None:
            known = self._try(wanted)
        return known.breaks

    def _measured(self) -> bool:
        """Launch on all nodes until the share of broken launches is known.

        Return whether launches on all nodes break often enough.
        """
        broke = launches = 0
        while broke < BREAKS and launches < AT_MOST:
            broke += self.launch(tuple(self.nodes))
            launches += 1
        # The last launch always broke, because it ended the loop. The estimate of the share is
        # unbiased without it.
        self.share = min((broke - 1) / max(1, launches - 1), MOST_OFTEN)
        often = broke >= BREAKS and self.share >= SELDOM
        self.tried.append(TriedSet(tuple(self.nodes), broke, launches, often))
        return self.tried[-1].breaks

    def _try(self, nodes: tuple[int, ...]) -> TriedSet:
        """Launch on a set of nodes until a sequential likelihood-ratio test decides whether it
        breaks.
        """
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
        """Return nodes that break together.

        They are found one by one. A bisection over the remaining nodes in their order finds the
        shortest beginning that breaks together with the nodes found so far. Its last node is the
        next one in the result.
        """
        needed = list[int]()
        rest = [*self.nodes]
        while rest and not (needed and self.breaks(needed)):
            # The needed nodes together with the first ``well`` nodes of the rest do not break, and
            # together with the first ``breaks`` nodes they do.
            well = 0
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
