"""Measure the cost of a change: one case before and after the change, in the same blocks.

    base, head, base again -> blocks -> two differences -> a status

The bound is the largest cost that a change may have. Blocks are added until the bound lies outside
of the interval, which is valid even if it is inspected after every block. The base version is also
compared with itself. If it differs from itself, the result is inconclusive.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.results import results
from harness.base.errors import BusyError, LaunchError, OutOfTimeError
from harness.measure.interleaving import (
    FEWEST_BLOCKS,
    MOST_BLOCKS,
    Difference,
    Interleaver,
    difference,
)
from harness.record import RunRecord, Status
from harness.record.outcome import SEVERITY

#: Names of the versions in a block. The last one is the base version a second time.
BASE = "base"
HEAD = "head"
AGAIN = "again"
#: The default of the largest relative cost that a change may have.
ALLOWED = 0.05


@dataclass(frozen=True, kw_only=True)
class CaseChange:
    """The effect of a change on one case.

    ``file`` is a file that the case uses, and ``allowed`` the largest relative cost that the change
    may have. ``ratio`` is the throughput of head relative to base, and [``low``, ``high``] its 95 %
    interval. The ``again`` fields hold the same ratio for the base version relative to itself.
    ``why`` is the reason for an inconclusive result, or the error.
    """

    case: str
    file: str
    status: Status
    allowed: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    num_pairs: int = 0
    again_ratio: float | None = None
    again_low: float | None = None
    again_high: float | None = None
    base_step_s: float | None = None
    head_step_s: float | None = None
    why: str = ""


def measured(
    interleaver: Interleaver,
    case: str,
    file: str,
    allowed: float,
    note: Callable[[str], None],
    until_s: float = math.inf,
) -> CaseChange:
    """Measure blocks until the change is decided, but at most ``MOST_BLOCKS``.

    No block begins after ``until_s``, which is a time of ``time.monotonic``. ``note`` is called
    with a line for each block.
    """
    changed: list[float] = []
    again: list[float] = []
    busy_blocks = 0
    while True:
        try:
            of_head, of_base = interleaver.beside(BASE, (HEAD, AGAIN))
        except BusyError as busy:
            busy_blocks += 1
            late = isinstance(busy, OutOfTimeError) or time.monotonic() >= until_s
            if busy_blocks < FEWEST_BLOCKS and not late:
                continue
            if not changed:
                return _without(case, file, allowed, Status.INCONCLUSIVE, busy.what)
            so_far = judged(case, file, allowed, changed, again)
            return replace(so_far, status=Status.INCONCLUSIVE, why=busy.what)
        except LaunchError as error:
            return _without(case, file, allowed, Status.ERROR, error.what)
        changed += of_head
        again += of_base
        change = judged(case, file, allowed, changed, again)
        note(f"{case}: head/base {change.ratio:.4f} over {change.num_pairs} pairs: {change.status}")
        enough = len(changed) >= 2 * FEWEST_BLOCKS
        if (enough and change.status is not Status.INCONCLUSIVE) or len(changed) >= 2 * MOST_BLOCKS:
            return change
        if time.monotonic() >= until_s:
            return replace(
                change,
                status=Status.INCONCLUSIVE,
                why="the time budget ended before the change was decided",
            )


def _without(case: str, file: str, allowed: float, status: Status, why: str) -> CaseChange:
    return CaseChange(case=case, file=file, status=status, allowed=allowed, why=why)


def judged(
    case: str, file: str, allowed: float, changed: Sequence[float], again: Sequence[float]
) -> CaseChange:
    """Judge the pairs so far.

    For each pair, ``changed`` holds the logarithm of the ratio of the step times of head and base.
    ``again`` holds the logarithms of the same ratio for base and base again.
    """
    head = difference(case, list(changed))
    base = difference(case, list(again))
    status, why = _status(head, base, 1 - allowed)
    return CaseChange(
        case=case,
        file=file,
        status=status,
        allowed=allowed,
        ratio=head.ratio,
        low=head.low,
        high=head.high,
        num_pairs=head.num_pairs,
        again_ratio=base.ratio,
        again_low=base.low,
        again_high=base.high,
        why=why,
    )


def _status(head: Difference, base: Difference, bound: float) -> tuple[Status, str]:
    if head.low is None or head.high is None or base.low is None or base.high is None:
        return Status.INCONCLUSIVE, "too few pairs for an interval"
    if not base.low <= 1 <= base.high:
        apart = f"{base.ratio:.3f} [{base.low:.3f}, {base.high:.3f}]"
        return Status.INCONCLUSIVE, f"the base version differs from itself: {apart}"
    if head.low > bound:
        return Status.PASS, ""
    if head.high < bound:
        return Status.FAIL, ""
    return Status.INCONCLUSIVE, f"the interval contains the threshold {bound:g}"


def checked(change: CaseChange, run: RunRecord) -> CaseChange:
    """Add the mean step times from the record. An error in the record makes the status ERROR."""
    cases = {
        arm.case.hash: arm.case.setup
        for plan in run.plans
        for arm in plan.arms
        if replace(arm.case, setup="").id == change.case
    }
    steps: dict[str, list[float]] = {BASE: [], HEAD: [], AGAIN: []}
    for launch in run.launches:
        if launch.case in cases and launch.block >= 0 and launch.usable and launch.steps:
            steps[cases[launch.case]].append(launch.steps.mean_s)
    change = replace(change, base_step_s=_middle(steps[BASE]), head_step_s=_middle(steps[HEAD]))
    wrong = [
        result
        for result in results(run)
        if result.case_hash in cases and result.status is Status.ERROR
    ]
    return replace(change, status=Status.ERROR, why=wrong[0].detail) if wrong else change


def _middle(steps: Sequence[float]) -> float | None:
    """Return the geometric mean of step times, because their ratios are compared."""
    return math.exp(math.fsum(map(math.log, steps)) / len(steps)) if steps else None


def worst(changes: Sequence[CaseChange]) -> CaseChange:
    """Return the change with the worst status. Among equal statuses, the lowest ratio is worst."""
    return min(changes, key=lambda change: (SEVERITY.index(change.status), change.ratio or 0.0))
