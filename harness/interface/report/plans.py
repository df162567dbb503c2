"""Print the plans of a run: a row for each arm, its thresholds, and the time they take."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import forecast, roofline
from harness.analysis.judging import blockers
from harness.base.formatting import duration, si
from harness.cases import Arm, Device, Plan, Threshold
from harness.host.devices import Hardware
from harness.host.machine import Machine
from harness.interface.report import text
from harness.record import Described, Status

#: Width in characters of the column that explains why an arm is left out.
TOLD_WIDE = 30


@dataclass(frozen=True, kw_only=True)
class PlanOutlook:
    """A plan with the descriptions of its cases, and the thresholds that judge each arm.

    ``seconds`` is the duration of its launches, without launches that it shares with earlier plans.
    ``device_s`` is the device time in these launches.
    """

    plan: Plan
    described: dict[str, Described]
    rules: dict[str, list[str]]
    num_launches: int
    seconds: float
    device_s: float = 0.0


@dataclass(frozen=True)
class PlanLine:
    """An arm in the table of plans.

    ``last`` is the last arm of its plan. Its name lists how its case differs from the defaults.
    The names of the other arms list only how they differ from the last arm.
    """

    arm: Arm
    described: Described
    num_rules: int
    last: Arm

    @property
    def name(self) -> str:
        family, *extras = text.named(self.arm.case).split("\n")
        shown = set(text.named(self.last.case).split("\n")) if self.arm is not self.last else set()
        return "\n".join([family, *(line for line in extras if line not in shown)])


@dataclass(frozen=True)
class PlanPlace:
    """The place where plans would run: this machine, or ``on`` other hardware."""

    machine: Machine
    on: Hardware | None
    costs: forecast.LaunchCosts

    def params(self, line: PlanLine) -> str:
        facts = line.described.facts
        return "" if facts is None else si(float(facts.num_params))

    def batch(self, line: PlanLine) -> str:
        expected = line.described.expected
        return "" if expected is None else str(expected.global_batch)

    def step(self, line: PlanLine) -> str:
        if line.described.expected is None:
            return ""
        step_s = self.costs.step_s(line.arm.case)
        return f"{1e3 * step_s:.3g} ms" if step_s < 1 else f"{step_s:.3g} s"

    def memory(self, line: PlanLine) -> str:
        """Return the bytes of a rank, and their share of its GPU memory if it has a GPU."""
        expected, card_gib = line.described.expected, self.machine.gpu_memory_gib
        if expected is None:
            return ""
        needed = si(float(expected.memory_bytes), "B")
        if self.on is None or line.arm.case.device is Device.CPU or card_gib is None:
            return needed
        return f"{needed} {expected.memory_bytes / 2**30 / card_gib:4.0%}"

    def mfu(self, line: PlanLine) -> str:
        """Return the largest MFU that the roofline of the device's data sheet allows."""
        used = roofline.mfu_of(line.described, line.arm.case, self.machine.gpu)
        return "" if used is None else f"{used:.2f}"

    def sends(self, line: PlanLine) -> str:
        """Return the bytes that the busiest rank sends in a step, and how long its link needs."""
        expected, case = line.described.expected, line.arm.case
        sent = 0.0 if expected is None else max(expected.sent_bytes)
        if self.on is None or not sent or case.device is Device.CPU:
            return si(sent, "B") if sent else ""
        link = self.on.network_bytes if len(case.nodes) > 1 else self.on.link_bytes
        return f"{si(sent, 'B')} {1e3 * sent / link:.3g} ms"

    def judged(self, line: PlanLine) -> str:
        """Return how many thresholds judge an arm, or why it is left out."""
        d, many = line.described, line.num_rules
        if d.facts is None or d.expected is None:
            status = Status.NOT_COMPARABLE if d.not_comparable else Status.SKIP
            message = f"{Status.ERROR if d.error else status}: {d.refused}"
            return "\n".join(text.wrap(message, TOLD_WIDE, 0))
        if not blockers.fits(d, line.arm.case, self.machine):
            return "SKIP: does not fit"
        return f"{many} rule{'s' * (many > 1)}" if many else ""


def lines(
    outlooks: Sequence[PlanOutlook],
    thresholds: Sequence[Threshold],
    swept: Mapping[str, int],
    place: PlanPlace,
    width: int,
) -> list[str]:
    """Return the table of plans.

    ``swept`` maps each threshold to the number of fabric worlds that it judges.
    """
    columns = [
        text.Column[PlanLine]("case", 9, lambda line: line.name, left=True),
        text.Column("ranks", 9, lambda x: x.arm.case.world),
        text.Column("params", 3, place.params),
        text.Column("batch", 1, place.batch),
        text.Column("step", 4, place.step),
        text.Column("MFU<", 5, place.mfu),
        text.Column("memory", 7, place.memory),
        text.Column("sends/step", 6, place.sends),
        text.Column("judged by", 8, place.judged, left=True),
    ]
    rows = [
        PlanLine(
            arm,
            outlook.described[arm.case.hash],
            len(outlook.rules[arm.name]),
            outlook.plan.arms[-1],
        )
        for outlook in outlooks
        for arm in outlook.plan.arms
    ]
    table = text.table(columns, rows, width) if rows else [" nothing can be launched here"]
    meanings = text.legend(_meanings(place), table[0])
    totals = text.wrap(f" {_totals(outlooks, place)}", width, 1)
    explained = text.wrap(f" {meanings}", width, 1) if meanings else []
    return [*table, "", *_judging(outlooks, thresholds, swept, width), *totals, *explained]


def _meanings(place: PlanPlace) -> dict[str, str]:
    """Return the meaning of each column whose head does not explain it."""
    if place.on is None:
        rank = "of a rank, from closed forms"
        return {"memory": rank, "sends/step": rank}
    fast, slow = place.on.link_bytes / 1e9, place.on.network_bytes / 1e9
    return {
        "step": f"estimated from {forecast.ROOFLINE_SHARE:.0%} of the roofline, or from the link",
        "MFU<": (
            "upper bound by the roofline of the device's data sheet; cases below"
            f" {roofline.MECHANICS:.2f} test mechanics, not speed"
        ),
        "memory": "of a rank, with its share of the GPU memory",
        "sends/step": (
            f"bytes of the busiest rank and the time that its link needs: {fast:.0f} GB/s within"
            f" a node, {slow:.0f} GB/s between nodes"
        ),
    }


def _judging(
    outlooks: Sequence[PlanOutlook],
    thresholds: Sequence[Threshold],
    swept: Mapping[str, int],
    width: int,
) -> list[str]:
    """Return every threshold that applies here, with its bound and the number of arms."""
    arms = Counter(
        name for outlook in outlooks for names in outlook.rules.values() for name in names
    ) + Counter(swept)
    columns = [
        text.Column[Threshold]("rule", 9, lambda threshold: threshold.name, left=True),
        text.Column("metric", 7, lambda t: t.metric, left=True),
        text.Column("bound", 8, lambda t: t.bound, left=True),
        text.Column("source", 5, lambda t: str(t.source), left=True),
        text.Column("arms", 6, lambda t: str(arms[t.name])),
    ]
    applying = [threshold for threshold in thresholds if arms[threshold.name]]
    return [*text.table(columns, applying, width), ""] if applying else []


def _totals(outlooks: Sequence[PlanOutlook], place: PlanPlace) -> str:
    """Return the duration of all plans, and their cost on other hardware."""
    on = place.on
    launches = sum(outlook.num_launches for outlook in outlooks)
    took = sum(outlook.seconds for outlook in outlooks)
    plans = f"{len(outlooks)} plan{'s' * (len(outlooks) != 1)}"
    sentence = f"{plans}, at least {launches} timed launches, about {duration(took)}"
    if on is None:
        return sentence
    hours = took / 3600 * sum(on.nodes)
    used = sum(outlook.device_s for outlook in outlooks) / 3600
    idle = max(0.0, 1 - used / hours) if hours else 0.0
    return (
        f"{sentence}: {hours:.1f} GPU-hours on {on.name} ({place.machine.gpu}),"
        f" {idle:.0%} of them idle while small world sizes run"
    )
