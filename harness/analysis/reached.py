"""Find out whether each threshold of a run judged a result, and why not."""

from harness.analysis.judging import contrast_data
from harness.analysis.judging.series import series
from harness.cases import Reach, Threshold
from harness.cases.rules import reach
from harness.record import RunRecord


def reached(run: RunRecord) -> list[tuple[Threshold, Reach, str]]:
    """Return for each threshold of a run whether it judged a result, and why not.

    The text is empty if the threshold judged a result.
    """
    cases = [arm.case for plan in run.plans for arm in plan.arms]
    others = series(run)
    judged = [
        (plan.arm(contrast.subject).case, contrast)
        for plan in run.plans
        for contrast in contrast_data.judged_of(plan, run.thresholds, run.machine)
    ]
    largest = sum(run.settings.nodes)
    nodes = max((len(case.nodes) for case in cases), default=len(run.settings.nodes))
    device = max((case.device for case in cases), key=str, default=run.settings.device)
    reaches = []
    for rule in run.thresholds:
        met, reason = reach(rule, judged, run.machine, device, largest, nodes)
        if any(other.matched_by(rule, run) for other in others):
            met = Reach.MATCHED
            reason = ""
        reaches.append((rule, met, reason))
    return reaches
