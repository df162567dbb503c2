"""What every rule of a run met: a contrast that it judges, nothing, or nothing that could be."""

from harness.analysis.judging import pairs
from harness.analysis.judging.series import series
from harness.cases import Reach, Threshold
from harness.cases.rules import reach
from harness.record import RunRecord


def reached(run: RunRecord) -> list[tuple[Threshold, Reach, str]]:
    """(rule, what it met, why nothing) of every rule; nothing for a run without cases."""
    cases = [a.case for p in run.plans for a in p.arms]
    hardware = run.machine.hardware_class
    others = series(run)
    judged = [
        (p.arm(c.subject).case, c)
        for p in run.plans
        for c in pairs.judged_of(p, run.thresholds, hardware)
    ]
    largest = sum(run.settings.nodes)
    nodes = max((len(c.nodes) for c in cases), default=len(run.settings.nodes))
    device = max((c.device for c in cases), key=str, default=run.settings.device)
    reaches = []
    for rule in run.thresholds:
        met, reason = reach(rule, judged, hardware, device, largest, nodes)
        if any(other.matched_by(rule, run) for other in others):
            met = Reach.MATCHED
            reason = ""
        reaches.append((rule, met, reason))
    return reaches
