"""``plan``: what would be launched, how long it will take, and what each case will need."""

import argparse
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.analysis.judging import obstacles, pairs, verdicts
from harness.base.documents import to_doc
from harness.base.numbers import duration, si
from harness.host import machine as machines
from harness.host.machine import Machine
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import Described, Expected, ModelFacts
from harness.spec import Arm, CaseSpec, Plan, Threshold
from harness.spec.plan import HORIZON
from harness.spec.targets import plans_of

#: Seconds that a launch costs beside its steps, and a step when nothing better is known.
LAUNCH_S, GATE_S = 0.15, 1.5


HELP = dict(plan="show the launches of a run with their time, memory and bytes per rank")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """One plan with what the agent said of its cases, and which rules judge each arm."""

    plan: Plan
    described: dict[str, Described]
    rules: dict[str, list[str]]
    num_launches: int


def add_to(sub: argparse.ArgumentParser, verb: str) -> None:
    sub.add_argument(
        "target", nargs="?", default="suites",
        help="a case, a suite folder, file.py or file.py::recipe",
    )  # fmt: skip
    measuring.add_to(sub, cases=True)


def act(asked: Asked) -> Answer:
    """A row for each arm; the agent is asked, nothing is launched."""
    known, site = measuring.site(asked)
    ablations = list(dict.fromkeys(asked.options.ablate))
    plans = plans_of(asked.options.target, site, known, measuring.settings(asked), ablations)
    with contextlib.closing(measuring.session(asked, known, site)) as session:
        session.describe([a.case for p in plans for a in p.arms])
        run = session.run
        outlooks = [outlook(p, run.described, run.thresholds) for p in plans]
    return Answer(document=[to_doc(f) for f in outlooks], lines=lines(outlooks, run.machine))


def outlook(
    plan: Plan, described: dict[str, Described], thresholds: Sequence[Threshold]
) -> Outlook:
    """What a plan will do, with the rules that will judge it."""
    hardware = machines.detect().hardware_class
    judged = pairs.judged_of(plan, thresholds, hardware)
    rules: dict[str, list[str]] = {a.name: [] for a in plan.arms}
    for c in judged:
        matched = verdicts.rules_for(thresholds, plan.arm(c.subject).case, c, hardware)
        rules[c.subject] += [t.name for t in matched if t.name not in rules[c.subject]]
    return Outlook(
        plan=plan,
        described={a.case.hash: described[a.case.hash] for a in plan.arms},
        rules=rules,
        num_launches=2 * plan.protocol.min_blocks * len(plan.arms),
    )


def estimate_s(forecast: Outlook) -> float:
    """Rough seconds for the plan's first blocks: closed-form FLOPs at a core's usual rate.

    Paced models state their own step time; on a GPU the rate is a guess and the figure is too.
    """
    total = 0.0
    protocol = forecast.plan.protocol
    for arm in forecast.plan.arms:
        facts = forecast.described[arm.case.hash].facts
        expected = forecast.described[arm.case.hash].expected
        if facts is None or expected is None:
            continue
        rate = 3e10 if arm.case.device == "cpu" else 2e14
        step_s = _flops(facts, expected, arm.case) / rate
        if facts.step_s is not None:
            step_s = facts.step_s * 1.2  # and what is communicated
        launch_s = LAUNCH_S + protocol.steps * max(step_s, 2e-3)
        # Beside the timed launches a gate, a pilot, a reference, and a profile.
        total += (2 * protocol.min_blocks + HORIZON + 2) * launch_s + GATE_S
    return total


class Line(NamedTuple):
    """An arm of the table; the ``last`` one of a plan says in what its case differs."""

    arm: Arm
    described: Described
    rules: Sequence[str]
    last: bool


def _flops(facts: ModelFacts, expected: Expected, case: CaseSpec) -> float:
    return facts.flops_per_sample * expected.global_batch / case.world_size


def lines(outlooks: Sequence[Outlook], machine: Machine) -> list[str]:
    """The table of ``plan``."""

    def of(read: Callable[[ModelFacts, Expected, CaseSpec], str]) -> Callable[[Line], str]:
        """A cell that is empty where a case has neither facts nor expectations."""

        def cell(line: Line) -> str:
            d, case = line.described, line.arm.case
            return "" if d.facts is None or d.expected is None else read(d.facts, d.expected, case)

        return cell

    def rules(line: Line) -> str:
        d = line.described
        if d.facts is None or d.expected is None:
            return f"ERROR: {d.error}" if d.error else f"SKIP: {d.unsupported}"
        fits = obstacles.fits(d, line.arm.case, machine)
        return ", ".join(line.rules) if fits else "SKIP: does not fit"

    columns = [
        text.Column[Line](
            "case", 9, lambda x: text.named(x.arm.case) if x.last else x.arm.case.family, left=True
        ),
        text.Column("ranks", 9, lambda x: x.arm.case.world),
        text.Column("params", 4, of(lambda f, e, c: si(float(f.num_params)))),
        text.Column("batch", 5, of(lambda f, e, c: str(e.global_batch))),
        text.Column("GFLOP/step", 3, of(lambda f, e, c: f"{_flops(f, e, c) / 1e9:.3g}")),
        text.Column("memory", 6, of(lambda f, e, c: si(float(e.memory_bytes), "B"))),
        text.Column("sends/step", 7, of(lambda f, e, c: si(max(e.sent_bytes), "B"))),
        text.Column("rules", 8, rules, left=True),
    ]
    rows = [
        Line(a, f.described[a.case.hash], f.rules[a.name], a is f.plan.arms[-1])
        for f in outlooks
        for a in f.plan.arms
    ]
    launches = sum(f.num_launches for f in outlooks)
    seconds = sum(estimate_s(f) for f in outlooks)
    width = text.columns()
    note = (
        f" {len(outlooks)} plans, at least {launches} timed launches, about {duration(seconds)};"
        " memory and bytes are per rank, computed from closed forms"
    )
    table = text.table(columns, rows, width) if rows else [" nothing to launch here"]
    return [*table, "", *text.wrap(note, width, 1)]
