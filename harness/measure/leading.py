"""Which plan of a long run goes first, so that whoever waits sees a verdict early."""

from collections.abc import Mapping, Sequence

from harness.analysis.judging import pairs
from harness.base.numbers import duration
from harness.cases import Plan, Threshold
from harness.host.machine import Machine
from harness.record import Verdict

#: Runs that are shorter show all their verdicts soon enough.
LONG_S = 600.0


def lead(
    plans: Sequence[Plan],
    seconds: Mapping[str, float],
    thresholds: Sequence[Threshold],
    machine: Machine,
) -> Plan | None:
    """The plan that a rule judges and that takes least, of a run that takes long.

    ``seconds`` says by plan how long each takes alone. No stand-in leads: it says nothing of
    hardware.
    """
    if len(plans) < 2 or sum(seconds.values()) < LONG_S:
        return None
    judged = [
        plan for plan in plans if _on_hardware(plan) and pairs.ruled(plan, thresholds, machine)
    ]
    return min(judged, key=lambda plan: seconds[plan.hash], default=None)


def first_verdict(verdicts: Sequence[Verdict], elapsed_s: float) -> str | None:
    """The first plan's result, of its largest world; None where nothing was measured.

    It is said as it stands: more blocks, or a fresh set, may still change the word.
    """
    ruled = [
        verdict for verdict in verdicts if verdict.rule is not None and verdict.value is not None
    ]
    if not ruled:
        return None
    largest = ruled[-1]
    figure = f"{largest.metric} {largest.value:.2f}"
    if largest.low is not None:
        figure += f" [{largest.low:.2f}, {largest.high:.2f}]"
    when = duration(elapsed_s)
    return f"after {when}: {largest.case} {figure}, needs {largest.bound}: so far {largest.status}"


def _on_hardware(plan: Plan) -> bool:
    return not any(arm.case.stand_in for arm in plan.arms)
