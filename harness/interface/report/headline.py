"""One sentence that a manager could quote: what was asked, what came out, what would decide it."""

import math
import shlex

from harness.analysis.again import command
from harness.analysis.judging.points import points
from harness.base.numbers import si
from harness.cases import CaseSpec, Form, Threshold, metrics
from harness.record import Reason, RunRecord, ScalingPoint, Status, Verdict
from harness.record.outcome import SEVERITY

#: More pairs than this are no plan.
MOST_PAIRS = 100
#: Where more verdicts than this need the same, the whole run is told.
FEW = 2
#: What decides a verdict that more pairs do not.
_DECIDES = {
    Reason.NOISY_HOST: "a quieter host",
    Reason.NOT_STEADY: "longer windows, or a quieter host",
    Reason.NEIGHBOURS: "--one-by-one",
    Reason.OUT_OF_TIME: "more time",
    Reason.INTERRUPTED: "scaleproof run --resume",
    Reason.UNCONFIRMED: "a fresh set of launches",
    Reason.DISAGREE: "another run",
    Reason.PERTURBED: "longer steps",
}


def headline(run: RunRecord) -> str:
    """The worst status, how many rules hold, the worst case with its figure, the largest rung."""
    judged = [v for v in run.verdicts if v.rule and v.reason is not Reason.CAUGHT]
    judged = [v for v in judged if v.status is not Status.SKIP]
    largest = _largest(run)
    if not judged:
        return ". ".join(filter(None, ["RECORDED: no rule judged what was measured", largest]))
    judged.sort(key=lambda v: SEVERITY.index(v.counts))
    worst = judged[0]
    hold = sum(v.status is Status.PASS for v in judged)
    rules = f"{hold} of {len(judged)} requirements hold"
    if worst.counts is Status.PASS:
        return ". ".join(filter(None, [f"PASS: {rules}", largest]))
    return ". ".join(filter(None, [f"{worst.counts}: {rules}; {_why(run, worst)}", largest]))


def decide(run: RunRecord) -> list[str]:
    """What would decide the undecided requirements, and the command to run.

    That of the case alone; that of the whole run where several requirements need the same.
    """
    cases = {a.case.id: a.case for p in run.plans for a in p.arms}
    rules = {t.name: t for t in run.thresholds}
    by_remedy: dict[str, list[str]] = {}
    for v in run.verdicts:
        if v.rule in rules and v.counts is Status.INCONCLUSIVE and v.case in cases:
            by_remedy.setdefault(_decides(v, rules[v.rule]), []).append(v.case)
    lines = []
    for remedy, undecided in by_remedy.items():
        if len(undecided) > FEW:
            lines.append(f"{len(undecided)} verdicts by {remedy}: {shlex.join(run.settings.argv)}")
            continue
        for case in undecided:
            lines.append(f"{case} by {remedy}: {command(cases[case], run.settings)}")
    return lines


def _why(run: RunRecord, v: Verdict) -> str:
    if v.value is None:
        return f"{v.case}: {v.detail}"
    metric = metrics.metric(v.metric)

    def show(x: float | None) -> str:
        return si(x, metric.unit) if metric.form is Form.ABSOLUTE else f"{x:.3g}"

    of = "" if v.metric == "efficiency" else f" {v.metric}"
    span = "" if v.low is None else f" [{show(v.low)}, {show(v.high)}]"
    told = f"{v.case} has{of} {show(v.value)}{span} where {v.bound} is asked"
    rule = next((t for t in run.thresholds if t.name == v.rule), None)
    if v.counts is Status.INCONCLUSIVE and rule is not None:
        told += f", undecided: it takes {_decides(v, rule)}"
    return told


def _decides(v: Verdict, rule: Threshold) -> str:
    """More pairs, by how the interval shrinks with them; or whatever else is in the way."""
    if v.reason in _DECIDES:
        return _DECIDES[v.reason]
    bounds = [b for b in (rule.at_least, rule.at_most) if b is not None]
    if v.value is None or v.low is None or v.high is None or not bounds or not v.n:
        return "more pairs of launches"
    gap = min(abs(v.value - b) for b in bounds)
    more = v.n * ((v.high - v.low) / 2 / gap) ** 2 - v.n if gap else math.inf
    if more > MOST_PAIRS:
        return f"over {MOST_PAIRS} more pairs, since it lies at the bound"
    return f"about {max(2, math.ceil(more - 1e-6))} more pairs"


def _largest(run: RunRecord) -> str:
    """The largest rung of real hardware: what is left of a rank's speed there."""
    found: list[tuple[CaseSpec, ScalingPoint]] = []
    for plan in run.plans:
        cases = {a.case.id: a.case for a in plan.arms}
        found += [
            (cases[p.case], p)
            for p in points(run, plan)
            if p.world_size > 1 and not run.stand_ins(cases[p.case])
        ]
    if not found:
        return ""
    case, point = max(found, key=lambda f: (f[1].world_size, f[1].efficiency))
    unit = "GPUs" if case.device == "cuda" else "CPU ranks"
    return (
        f"{case.family} keeps {point.efficiency:.0%} of a rank's speed on {point.world_size} {unit}"
    )
