"""``plan``: what would be launched, how long it will take, and what each case will need."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.judging import obstacles, pairs, verdicts
from harness.base.documents import to_doc
from harness.base.numbers import duration, si
from harness.host import machine as machines
from harness.host.machine import Machine
from harness.interface.cli import measuring
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import Described
from harness.spec import Plan, Threshold
from harness.spec.targets import plans_of

#: Seconds that a launch costs beside its steps, and a step when nothing better is known.
LAUNCH_S, GATE_S = 0.15, 1.5


HELP = dict(plan="what would be launched, how long it takes, memory and bytes per rank")


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
        found = [outlook(p, run.described, run.thresholds) for p in plans]
    return Answer(document=[to_doc(f) for f in found], lines=lines(found, run.machine))


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


def estimate_s(found: Outlook) -> float:
    """Rough seconds for the plan's first blocks: closed-form FLOPs at a core's usual rate.

    Paced models state their own step time; on a GPU the rate is a guess and the figure is too.
    """
    total = 0.0
    protocol = found.plan.protocol
    for arm in found.plan.arms:
        facts = found.described[arm.case.hash].facts
        expected = found.described[arm.case.hash].expected
        if facts is None or expected is None:
            continue
        rate = 3e10 if arm.case.device == "cpu" else 2e14
        step_s = facts.flops_per_sample * expected.global_batch / arm.case.world_size / rate
        if facts.step_s is not None:
            step_s = facts.step_s * 1.2  # and what is communicated
        total += 2 * protocol.min_blocks * (LAUNCH_S + protocol.steps * max(step_s, 2e-3)) + GATE_S
    return total


def lines(found: Sequence[Outlook], machine: Machine) -> list[str]:
    """The table of ``plan``."""
    columns = [
        text.Column(header="case", keep=9, left=True),
        text.Column(header="ranks", keep=9),
        text.Column(header="params", keep=4),
        text.Column(header="batch", keep=5),
        text.Column(header="GFLOP/step", keep=3),
        text.Column(header="memory", keep=6),
        text.Column(header="sends/step", keep=7),
        text.Column(header="rules", keep=8, left=True),
    ]
    rows = []
    for f in found:
        for arm in f.plan.arms:
            d = f.described[arm.case.hash]
            if d.facts is None or d.expected is None:
                skipped = f"ERROR: {d.error}" if d.error else f"SKIP: {d.unsupported}"
                rows.append([arm.case.family, arm.case.world, "", "", "", "", "", skipped])
                continue
            flops = d.facts.flops_per_sample * d.expected.global_batch / arm.case.world_size
            rows.append(
                [
                    arm.case.family,
                    arm.case.world,
                    si(float(d.facts.num_params)),
                    str(d.expected.global_batch),
                    f"{flops / 1e9:.3g}",
                    si(float(d.expected.memory_bytes), "B"),
                    si(max(d.expected.sent_bytes), "B"),
                    ", ".join(f.rules[arm.name])
                    if obstacles.fits(d, arm.case, machine)
                    else "SKIP: does not fit",
                ]
            )
        extras = f.plan.arms[-1].case.extras.split("+")[1:] if f.plan.arms else []
        rows += [[f"  +{extra}", *[""] * (len(columns) - 1)] for extra in extras]
    launches = sum(f.num_launches for f in found)
    seconds = sum(estimate_s(f) for f in found)
    return [
        *(text.table(columns, rows, text.columns()) if rows else [" nothing to launch here"]),
        "",
        f" {len(found)} plans, at least {launches} timed launches, about {duration(seconds)};"
        f" memory and bytes are per rank, in closed form",
    ]
