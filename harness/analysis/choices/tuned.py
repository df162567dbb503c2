"""Losses of codecs under the optimizer that each is published with, each at its own best rate.

A codec that loses to dense training under AdamW at one learning rate has lost as that pair alone:
most of them are defined for SGD, and 1-bit Adam for a variance that is frozen. So each is trained
at every rate of a grid, as dense training is under the same optimizer, and the best are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.cases import CaseSpec, Optimizer, Plan
from harness.cases.case import USUAL_LR
from harness.record import LaunchRecord, Purpose, RunRecord

#: The rates that are tried, as multiples of the optimizer's usual one.
FACTORS = (0.2, 1.0, 5.0)


def grid(case: CaseSpec) -> list[float]:
    """The learning rates that are tried of a case's optimizer."""
    return [USUAL_LR[case.optimizer] * factor for factor in FACTORS]


@dataclass(frozen=True, kw_only=True)
class TunedLoss:
    """The lowest loss of a codec under its optimizer, at the rate ``lr``; and dense training's.

    ``at_edge``: the best rate is the first or last of the grid, so a better one may lie beyond.
    ``diverged``: rates at which no loss was left.
    """

    name: str
    optimizer: str
    lr: float
    loss: float
    at_edge: bool
    diverged: tuple[float, ...]
    dense_lr: float | None
    dense_loss: float | None


def best(run: RunRecord, plan: Plan) -> list[TunedLoss]:
    """One for each codec of the plan whose losses are there, in the plan's order."""
    pairs = dict.fromkeys((arm.case.compressor, arm.case.optimizer) for arm in plan.arms)
    lowest = []
    for codec, optimizer in pairs:
        losses = _losses(run, plan, codec, optimizer)
        if codec is None or not any(loss is not None for loss in losses.values()):
            continue
        beside = Optimizer.ADAMW if optimizer is Optimizer.FROZEN_ADAM else optimizer
        dense = _losses(run, plan, None, beside)
        lr, loss = _least(losses) or (0.0, 0.0)
        dense_lr, dense_loss = _least(dense) or (None, None)
        lowest.append(
            TunedLoss(
                name=codec,
                optimizer=optimizer,
                lr=lr,
                loss=loss,
                at_edge=lr in (min(losses), max(losses)),
                diverged=tuple(rate for rate, left in losses.items() if left is None),
                dense_lr=dense_lr,
                dense_loss=dense_loss,
            )
        )
    return lowest


def untrained(run: RunRecord, plan: Plan) -> list[str]:
    """The codecs of the plan of which no loss is there at any rate."""
    shown = {lowest.name for lowest in best(run, plan)}
    return [
        c for c in dict.fromkeys(arm.case.compressor for arm in plan.arms) if c and c not in shown
    ]


def _least(losses: dict[float, float | None]) -> tuple[float, float] | None:
    """The rate with the lowest loss, and that loss."""
    pairs = [(loss, lr) for lr, loss in losses.items() if loss is not None]
    if not pairs:
        return None
    loss, lr = min(pairs)
    return lr, loss


def _losses(
    run: RunRecord, plan: Plan, codec: str | None, optimizer: str
) -> dict[float, float | None]:
    """The loss at each rate; None where none was left."""
    by_rate: dict[float, float | None] = {}
    for arm in plan.arms:
        if (arm.case.compressor, arm.case.optimizer) == (codec, optimizer):
            by_rate[arm.case.lr] = _loss(
                [launch for launch in run.launches if _trained(launch, plan, arm.name)]
            )
    return by_rate


def _trained(launch: LaunchRecord, plan: Plan, arm: str) -> bool:
    """Whether a launch trained this arm through the strategy."""
    trained = launch.purpose in (Purpose.PILOT, Purpose.TIMED)
    return launch.plan == plan.hash and launch.arm == arm and trained


def _loss(launches: Sequence[LaunchRecord]) -> float | None:
    losses = [launch.final_loss for launch in launches if launch.final_loss is not None]
    return sum(losses) / len(losses) if losses else None
