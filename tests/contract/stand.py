"""A bench for tests that compare a timed launch with its reference."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.samples import references
from harness.cases import Arm, Catalogue, Device, Plan, Protocol, Role, Site, Window
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.measure.order import Order
from harness.record import Described, LaunchRecord, Purpose


class Stand:
    """A bench that launches a case's correctness check, its reference and one timed window."""

    def __init__(self, folder: Path, files: Path) -> None:
        self.known, self.folder = Catalogue([files]), folder
        engine = self.known.get("engines", "local")
        self.bench = Bench(self.known, engine, Where())

    def described(
        self, name: str, ranks: int = 2, steps: int = 16, **fields: object
    ) -> tuple[Plan, Described]:
        site = Site(device=Device.CPU, backend="gloo", nodes=(ranks,))
        case = self.known.normalise(site.case(name, **fields))  # type: ignore[arg-type]
        arm = Arm(name="@", case=case, role=Role.SUBJECT)
        protocol = Protocol(steps=steps, cut=2)
        plan = Plan(name=case.id, arms=(arm,), contrasts=(), protocol=protocol)
        return plan, self.bench.describe([case])[0]

    def launch(self, plan: Plan, described: Described, *purposes: Purpose) -> list[LaunchRecord]:
        done: list[LaunchRecord] = []
        (arm,) = plan.arms
        for purpose in purposes:
            compared = None
            if purpose is Purpose.TIMED:
                known = {arm.case.hash: described}
                compared = references.curve(self.folder, done, known, arm.case.hash)
            cut = 0 if purpose is Purpose.REFERENCE else 2
            order = Order(
                plan=plan,
                arm=arm,
                purpose=purpose,
                window=Window(steps=plan.protocol.steps, cut=cut),
                turn=0,
                reference=compared,
                replicates=references.REPLICATES,
            )
            done.append(self.bench.launch(order, self.folder, described, lambda step: None))
            assert done[-1].cause is None, done[-1].cause
        return done
