"""Extra blocks: which plan gets one more while verdicts are open, and which of its arms."""

import math
from collections.abc import Sequence

from harness.analysis.judging.verdicts import undecided
from harness.measure.run import Run
from harness.record import Verdict
from harness.spec import Arm, Plan


def block(
    run: Run, going: Sequence[tuple[Plan, Sequence[Arm]]], limit_s: float | None
) -> tuple[Plan, list[Arm]] | None:
    """The plan with the most open verdicts (then the widest interval) that has a block left.

    With the arms that the open ones need: what is decided is not measured again. None when
    nothing is open, or no time is left. ``going`` are the arms that each plan is timed with.
    """
    ranked: list[tuple[int, float, Plan, list[Arm]]] = []
    bare = run.bare()
    for plan, arms in going:
        if not (arms and 0 < len(run.blocks_of(plan)) < plan.protocol.max_blocks):
            continue
        still_open = undecided(bare, plan)
        names = {v.contrast for v in still_open}
        contrasts = [c for c in run.contrasts_of(plan) if c.name in names]
        needed = {a.name for a in plan.only(contrasts).arms}
        more = [a for a in arms if a.name in needed]
        if more and run.in_time(run.block_s(more), limit_s):
            ranked.append((len(still_open), _widest(still_open), plan, more))
    return max(ranked, key=lambda r: r[:2])[2:] if ranked else None


def _widest(still_open: Sequence[Verdict]) -> float:
    widths = [math.log(v.high / v.low) for v in still_open if v.low and v.high and v.low > 0]
    return max(widths, default=0.0)
