"""Blocks: in which order arms are launched, and what is missing of one that was interrupted."""

import dataclasses
from collections.abc import Iterator, Sequence

from harness.measure.run import Run
from harness.record import Block
from harness.spec import Arm, Plan


def drawn(plan: Plan, attempt: int, number: int, arms: Sequence[Arm]) -> Block:
    """A block of these arms, in the order that the plan's seed draws."""
    names = tuple(arm.name for arm in arms)
    block = Block(plan=plan.hash, attempt=attempt, number=number, arms=names)
    return dataclasses.replace(block, arms=block.drawn(plan.protocol.seed))


def missing(run: Run, plan: Plan, block: Block) -> Iterator[tuple[int, str]]:
    """(turn, arm) of every launch that is still to come, in order: there and back."""
    done = {
        (x.turn, x.arm)
        for x in run.timed(plan)
        if (x.attempt, x.block) == (block.attempt, block.number)
    }
    first = 2 * block.number
    for turn, names in ((first, block.arms), (first + 1, block.arms[::-1])):
        yield from ((turn, name) for name in names if (turn, name) not in done)
