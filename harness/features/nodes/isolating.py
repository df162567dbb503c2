"""Launches on any nodes of a site, to see which of them break or hang together."""

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.packing import Placement
from harness.base.errors import LaunchError, SpecError
from harness.cases import CaseSpec, Site
from harness.cases.recipes import paired
from harness.features.nodes import told
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
        self.hosts = told.hosts([node.host for node in session.run.nodes], len(site.nodes))
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
                fix="scaleproof isolate --case ddp/decoder-nano",
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
