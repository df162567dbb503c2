"""One sentence that a manager could quote: what was asked, what came out, what would decide it."""

import math
import shlex

from harness.analysis.again import command
from harness.base.numbers import si
from harness.cases import Form, Threshold, metrics
from harness.record import Reason, RunRecord, Status, Verdict
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
        return ". ".join(filter(None, [_unruled(run), largest]))
    judged.sort(key=lambda v: SEVERITY.index(v.counts))
    worst = judged[0]
    hold = sum(v.status is Status.PASS for v in judged)
    rules = f"{hold} of {len(judged)} requirements hold"
    if worst.counts is Status.PASS:
        return ". ".join(filter(None, [f"PASS: {rules}", largest]))
    return ". ".join(filter(None, [f"{worst.counts}: {rules}; {_why(run, worst)}", largest]))


def _unruled(run: RunRecord) -> str:
    """What came of a run that no rule judged: an error is one all the same."""
    worst = min(run.verdicts, key=lambda v: SEVERITY.index(v.counts), default=None)
    if worst is None or worst.counts not in (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE):
        return "RECORDED: no rule judged what was measured"
    return f"{worst.counts}: {worst.case}: {worst.detail}"


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
    message = f"{v.case} has{of} {show(v.value)}{span} where {v.bound} is asked"
    rule = next((t for t in run.thresholds if t.name == v.rule), None)
    if v.counts is Status.INCONCLUSIVE and rule is not None:
        message += f", undecided: it takes {_decides(v, rule)}"
    return message


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
    """The largest rung of real hardware: what is left of a rank's speed there, with its interval.

    Of several the worst; none that is undecided or in doubt, whatever it reads.
    """
    cases = {a.case.hash: a.case for p in run.plans for a in p.arms}
    efficiencies = [
        v
        for v in run.verdicts
        if v.metric == "efficiency" and v.against in ("plain", "wrapped") and _stands(v)
    ]
    rungs = [(cases[v.case_hash], v) for v in efficiencies if v.case_hash in cases]
    rungs = [(c, v) for c, v in rungs if c.world_size > 1 and not run.stand_ins(c)]
    if not rungs:
        return ""
    largest = max(case.world_size for case, _ in rungs)
    rungs = [(c, v) for c, v in rungs if c.world_size == largest]
    asked = [(c, v) for c, v in rungs if v.rule] or rungs
    case, worst = min(asked, key=lambda rung: rung[1].value or 0.0)
    assert worst.value is not None
    span = "" if worst.low is None else f" [{100 * worst.low:.0f}, {100 * (worst.high or 0):.0f}]"
    unit = "GPUs" if case.device == "cuda" else "CPU ranks"
    return f"{case.family} keeps {worst.value:.0%}{span} of a rank's speed on {largest} {unit}"


def _stands(v: Verdict) -> bool:
    """Whether a figure may be quoted."""
    decided = v.status in (Status.PASS, Status.FAIL)
    recorded = v.status is Status.RECORDED and v.reason is Reason.NO_RULE and not v.doubt
    return v.value is not None and (decided or recorded)
