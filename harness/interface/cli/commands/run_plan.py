"""The command ``run plan``: the launches of a run, their time, and the needs of each case."""

import argparse
import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from harness.analysis import forecast, packing
from harness.analysis.judging import blockers, contrast_data, verdicts
from harness.analysis.judging.judge import FIRST_LOOK
from harness.base.documents import to_doc
from harness.base.errors import SpecError
from harness.cases import Arm, Device, Plan, Site, Threshold
from harness.cases.targets import bounds_of, plans_of
from harness.host.devices import Hardware
from harness.host.machine import Machine
from harness.interface import options
from harness.interface.cli import measuring, planned_hardware
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import plans as plans_report, text
from harness.interface.report.plans import PlanOutlook
from harness.measure import together
from harness.measure.describe_cache import DescribeCache
from harness.record import Described
from harness.record.fabric import shapes

HELP = {
    "run plan": "list the launches of a run with their time, memory and bytes per rank",
}
EXAMPLES = {
    "run plan": (
        "run plan suites --cpus 2",
        "run plan suites --on 8xh100",
    ),
}


class Plans(TypedDict):
    plans: Sequence[PlanOutlook]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "run plan": (Plans,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    planned_hardware.add_hardware_options(sub)
    sub.add_argument(
        "-m",
        metavar="MARKS",
        default=planned_hardware.USUAL_TIER,
        dest="marks",
        help=f"suites with these pytest marks (default: {planned_hardware.USUAL_TIER!r})",
    )


def act(asked: Asked) -> Answer:
    """Return a row for each arm; an agent describes the cases, and nothing is launched."""
    hardware = planned_hardware.on(asked.options.on)
    catalogue, local_site = measuring.site(asked)
    site = local_site if hardware is None else planned_hardware.site_of(hardware)
    named = partial(
        plans_of,
        asked.options.target,
        site,
        catalogue,
        measuring.settings(asked),
        list(dict.fromkeys(asked.options.ablate)),
        control=bool(options.setups(measuring.values(asked))),
    )
    plans = named(planned_hardware.tier(asked.options.marks))
    if not plans and (left_out := named()):
        raise SpecError(
            f"no suite of {asked.options.target} has the requested marks",
            where=f"-m {asked.options.marks!r}",
            expected=f"marks of one of its {len(left_out)} plans",
            fix=f"scaleproof run plan {asked.options.target} -m 'nightly or acceptance'",
        )
    required = bounds_of(
        asked.options.target, site, catalogue, planned_hardware.tier(asked.options.marks)
    )
    planned = measuring.session(asked, catalogue, local_site, required=required)
    with contextlib.closing(planned) as session:
        session.describe(
            [arm.case for plan in plans for arm in plan.arms], DescribeCache(catalogue)
        )
        run = session.run
        machine, link = (
            (run.machine, 0.0) if hardware is None else (hardware.machine, hardware.slowest)
        )
        asks = run.settings
        swept = _swept(run.thresholds, site, machine) if asks.fabric else Counter[str]()
        look = Look(
            machine,
            run.described,
            run.thresholds,
            link,
            asks.timeline,
            asks.outline and hardware is None,
            _sweeps(site, bool(swept)) if asks.fabric else 0,
        )
        side_by_side = (
            partial(together.groups, session) if hardware is None else partial(_seated, hardware)
        )
        outlooks = look.at(plans, side_by_side)
        costs = forecast.LaunchCosts(plans, run.described, machine, link_bytes=link)
        place = plans_report.PlanPlace(machine, hardware, costs)
        shown = plans_report.lines(outlooks, run.thresholds, swept, place, text.columns())
    return Answer(document={"plans": [to_doc(outlook) for outlook in outlooks]}, lines=shown)


def _swept(thresholds: Sequence[Threshold], site: Site, machine: Machine) -> Counter[str]:
    """Return the thresholds on sweeps of the fabric, and how many worlds each judges."""
    return Counter(
        rule.name
        for rule in thresholds
        for nodes in shapes(site.nodes)
        if rule.case.startswith("fabric/")
        and rule.applies_on(site.device, sum(nodes), len(nodes))
        and rule.holds_on(machine, len(nodes))
    )


def _sweeps(site: Site, judged: bool) -> int:
    """Return the number of sweeps of the fabric in a run; a judged world needs several."""
    worlds = shapes(site.nodes) if site.world_size > 1 else ()
    return len(worlds) * (FIRST_LOOK if judged else 1)


def _seated(on: Hardware, plan: Plan, arms: Sequence[Arm]) -> list[list[Arm]]:
    """Return the arms that would run concurrently on other hardware, each on separate devices."""
    if any(arm.case.device is not Device.CUDA or arm.case.first_device for arm in arms):
        return [[arm] for arm in arms]
    return [[arms[i] for i in slot] for slot in packing.slots([arm.case for arm in arms], on.nodes)]


@dataclass(frozen=True)
class Look:
    """The machine and settings under which plans would run.

    ``link`` is the rate of a rank's slowest link in B/s, or 0 if it is unknown.
    """

    machine: Machine
    described: Mapping[str, Described]
    thresholds: Sequence[Threshold]
    link: float
    timeline: bool
    outline: bool
    sweeps: int = 0

    def at(self, plans: Sequence[Plan], slots: forecast.Slots) -> list[PlanOutlook]:
        """Return every plan with its launches and their time.

        Launches that a plan shares with earlier plans count for the earlier plan.
        """
        arms = {plan.hash: [arm for arm in plan.arms if self.runs(arm)] for plan in plans}
        expected = forecast.Forecast(
            plans=plans,
            arms=arms,
            described=self.described,
            machine=self.machine,
            thresholds=self.thresholds,
            slots=slots,
            link_bytes=self.link,
            timeline=self.timeline,
            outline=self.outline,
            sweeps=self.sweeps,
        )
        seconds = defaultdict[str, float](float)
        device_s = defaultdict[str, float](float)
        for launch in expected.coming():
            devices = sum(arm.case.world_size * arm.case.devices_per_rank for arm in launch.arms)
            seconds[launch.plan.hash] += launch.seconds
            device_s[launch.plan.hash] += devices * launch.seconds
        return [self._outlook(p, arms[p.hash], seconds[p.hash], device_s[p.hash]) for p in plans]

    def runs(self, arm: Arm) -> bool:
        """Return whether an arm can be launched."""
        answer = self.described[arm.case.hash]
        return not answer.error and blockers.fits(answer, arm.case, self.machine)

    def _outlook(
        self, plan: Plan, running: Sequence[Arm], seconds: float, device_s: float
    ) -> PlanOutlook:
        judged = contrast_data.judged_of(plan, self.thresholds, self.machine)
        rules: dict[str, list[str]] = {arm.name: [] for arm in plan.arms}
        for contrast in judged:
            case = plan.arm(contrast.subject).case
            matched = verdicts.rules_for(self.thresholds, case, contrast, self.machine)
            rules[contrast.subject] += [
                threshold.name
                for threshold in matched
                if threshold.name not in rules[contrast.subject]
            ]
        return PlanOutlook(
            plan=plan,
            described={arm.case.hash: self.described[arm.case.hash] for arm in plan.arms},
            rules=rules,
            num_launches=plan.num_first_launches(running),
            seconds=seconds,
            device_s=device_s,
        )
