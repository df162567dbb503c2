"""In which order the plans of a run are measured, so that whoever waits sees a verdict early."""

from collections.abc import Sequence

from harness.base.formatting import duration
from harness.cases import Plan
from harness.record import Verdict

#: Runs that are shorter show all their verdicts soon enough.
LONG_S = 600.0


def ordered(plans: Sequence[Plan]) -> list[Plan]:
    """The plans in the order in which a run measures them.

    Dense training comes before codecs, which are compared with it. Stand-ins say nothing of
    hardware and come last, as do controls.
    """
    return sorted(plans, key=lambda plan: (_stands_in(plan), _encodes(plan)))


def _stands_in(plan: Plan) -> bool:
    return any(arm.case.stand_in for arm in plan.arms) or not plan.protocol.max_blocks


def _encodes(plan: Plan) -> bool:
    return any(arm.case.compressor for arm in plan.arms)


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
