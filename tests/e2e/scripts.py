"""Measure the scripts of ``tests/scripts`` on one and two ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.cases import Device, Mode, Protocol, Site
from harness.cases.script import script_plan
from harness.interface.report.script import lines as script_table
from harness.measure import together
from harness.measure.measurer import Measurer, moment
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose, Verdict

SCRIPTS = Path(__file__).parents[1] / "scripts"
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
FAST = Protocol(steps=8, cut=2, min_blocks=1, max_blocks=1)


class Measured:
    """A callable that measures one script on 1 and 2 ranks and returns the verdict."""

    def __init__(self, session: Session) -> None:
        self._measurer, self.session = Measurer(session), session

    def __call__(
        self, *words: str, mode: Mode = Mode.WEAK, samples: int = 0, first_rung: int = 1,
        site: Site = SITE, protocol: Protocol = FAST, accept: str = "",
    ) -> Verdict:  # fmt: skip
        plan = script_plan(words, site, mode, samples, protocol, first_rung, accept)
        self._measurer.measure([plan])
        self.plan = plan
        (verdict,) = self._measurer.verdicts(plan)
        return verdict

    def once(self, *words: str, site: Site = SITE, ranks: int = 2) -> LaunchRecord:
        """Launch a script once on ``ranks`` ranks."""
        plan = script_plan(words, site, protocol=FAST)
        arm = plan.arm(f"@{ranks}")
        self.session.describe([arm.case])
        (order,) = together.orders(self.session, plan, [arm], Purpose.PILOT)
        self.session.run.announce([plan])
        (launch,) = self.session.launch([order], moment(self.session, order, {}, []))
        return launch

    def wrong(self) -> list[str]:
        """Return the errors of launches of the last plan; their speed depends on the host."""
        mine = [x for x in self.session.run.launches if x.plan == self.plan.hash]
        return [str(x.wrong or x.cause) for x in mine if not x.usable]

    def table(self) -> str:
        """Return the table of the last plan's script as one line."""
        record = self.session.run.record(complete=False)
        plans = tuple(plan for plan in record.plans if plan.hash == self.plan.hash)
        return " ".join(" ".join(script_table(replace(record, plans=plans))).split())

    def launches(self, ranks: int, purpose: Purpose = Purpose.TIMED) -> list[LaunchRecord]:
        run = self.session.run.launches
        mine = [x for x in run if x.plan == self.plan.hash and x.purpose is purpose]
        return [x for x in mine if len(x.ranks) == ranks]
