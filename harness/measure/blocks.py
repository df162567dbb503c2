"""Blocks: in which order arms are launched, what an interrupted one lacks, who gets more."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.analysis.judging.verdicts import undecided
from harness.cases import Arm, Plan
from harness.measure.run import Run
from harness.record import Block, Reason, Verdict

#: Few pairs tell little of their scatter: what promises to take so many times the blocks that are
#: left is begun all the same.
OPTIMISM = 2


def drawn(plan: Plan, attempt: int, number: int, slots: Sequence[Sequence[Arm]]) -> Block:
    """A block of these arms, those of a slot at once, in the order that the plan's seed draws."""
    block = Block(
        plan=plan.hash,
        attempt=attempt,
        number=number,
        arms=tuple(arm.name for slot in slots for arm in slot),
        together=tuple(map(len, slots)) if any(len(slot) > 1 for slot in slots) else (),
    )
    return block.drawn(plan.protocol.seed)


def missing(run: Run, plan: Plan, block: Block) -> Iterator[tuple[int, list[Arm]]]:
    """(turn, arms that run at once) of every slot that is still to come, there and back."""
    done = {
        (launch.turn, launch.arm)
        for launch in run.timed(plan)
        if (launch.attempt, launch.block) == (block.attempt, block.number)
    }
    for turn, slot in block.passes:
        if left := [plan.arm(name) for name in slot if (turn, name) not in done]:
            yield turn, left


class NextBlock(NamedTuple):
    """A block of one plan: the arms that its open verdicts need, and whether their baselines have
    to run alone, since neighbours are the doubt.
    """

    plan: Plan
    arms: list[Arm]
    baselines_alone: bool


def next_block(
    run: Run, plans: Sequence[Plan], arms: Mapping[str, Sequence[Arm]], limit_s: float | None
) -> NextBlock | None:
    """The block that decides a verdict soonest, by the scatter of its plan's pairs so far.

    None when nothing is open that the blocks left promise to decide, or no time is left. ``arms``
    maps a plan's hash to the arms that it is timed with.
    """
    ranked: list[tuple[float, float, NextBlock]] = []
    bare = run.bare()
    for plan in plans:
        blocks_left = plan.protocol.max_blocks - len(run.blocks_of(plan))
        if not arms[plan.hash] or blocks_left <= 0 or not run.blocks_of(plan):
            continue
        still_open = [
            verdict
            for verdict in undecided(bare, plan)
            if _blocks(verdict) <= OPTIMISM * blocks_left
        ]
        more = needed(run, plan, still_open, arms[plan.hash])
        block_s = run.block_s([[arm] for arm in more])
        if more and run.in_time(block_s, limit_s):
            alone = any(verdict.reason is Reason.NEIGHBOURS for verdict in still_open)
            soonest_s = min(map(_blocks, still_open)) * block_s
            ranked.append((soonest_s, -_widest(still_open), NextBlock(plan, more, alone)))
    return min(ranked, key=lambda r: r[:2])[2] if ranked else None


def _blocks(v: Verdict) -> float:
    """How many more blocks would decide it; where neighbours are in doubt, one shows it."""
    return 1 if v.more is None else math.ceil(v.more / 2)


def needed(run: Run, plan: Plan, open_: Sequence[Verdict], arms: Sequence[Arm]) -> list[Arm]:
    """The arms that the contrasts of these verdicts rest on."""
    names = {verdict.contrast for verdict in open_}
    contrasts = [contrast for contrast in run.contrasts_of(plan) if contrast.name in names]
    wanted = {arm.name for arm in plan.only(contrasts).arms}
    return [arm for arm in arms if arm.name in wanted]


def _widest(still_open: Sequence[Verdict]) -> float:
    widths = [
        math.log(verdict.high / verdict.low)
        for verdict in still_open
        if verdict.low and verdict.high and verdict.low > 0
    ]
    return max(widths, default=0.0)
