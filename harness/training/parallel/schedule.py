"""Pipeline schedules: the order of each rank's actions, and the best possible efficiency.

The order comes from ``torch.distributed.pipelining``. The ideal efficiency comes from a simulation
of this order with the work of each stage. A forward takes 1 unit of time and a backward takes 2
units, one for the gradients of inputs and one for the gradients of weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.pipelining import schedules


class ScheduleKind(NamedTuple):
    """The properties of a kind of schedule.

    ``made`` is torch's class. ``per_rank`` is the number of stages of a rank; if it is 0, the knob
    ``stages_per_rank`` sets it. If ``folded``, the first rank has the first and the last stage.
    """

    made: type[Any]
    per_rank: int
    folded: bool = False


SCHEDULES: Mapping[str, ScheduleKind] = {
    "gpipe": ScheduleKind(schedules.ScheduleGPipe, 1),
    "1f1b": ScheduleKind(schedules.Schedule1F1B, 1),
    "interleaved": ScheduleKind(schedules.ScheduleInterleaved1F1B, 0),
    "looped_bfs": ScheduleKind(schedules.ScheduleLoopedBFS, 0),
    "interleaved_zb": ScheduleKind(schedules.ScheduleInterleavedZeroBubble, 0),
    "zbv": ScheduleKind(schedules.ScheduleZBVZeroBubble, 2, folded=True),
    "dualpipev": ScheduleKind(schedules.ScheduleDualPipeV, 2, folded=True),
}
#: Relative times of a forward (F), a whole backward (B), and its halves for inputs (I) and for
#: weights (W).
COSTS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


class Action(NamedTuple):
    """One pass of one micro-batch through one stage.

    ``what`` is F (forward), B (backward), I (backward of inputs) or W (backward of weights).
    """

    what: str
    stage: int
    micro: int


class PlayedSchedule(NamedTuple):
    """The result of a simulated schedule.

    ``efficiency`` is the fraction of time in which ranks compute, and ``ends`` holds the time at
    which each action ends.
    """

    efficiency: float
    ends: Mapping[Action, float]


@dataclass(frozen=True)
class Schedule:
    """A schedule for a number of ranks, stages per rank and micro-batches."""

    name: str
    ranks: int
    per_rank: int
    micro: int

    @classmethod
    def of(cls, knobs: Mapping[str, Any], ranks: int, blocks: int | None = None) -> Schedule:
        """Return the schedule that the knobs select.

        Raise ValueError if torch would refuse it, or if it has more stages than the model has
        blocks.
        """
        name = str(knobs["schedule"])
        if name not in SCHEDULES:
            raise ValueError(
                f"there is no schedule {name!r}; expected one of {', '.join(SCHEDULES)}"
            )
        per_rank = SCHEDULES[name].per_rank or int(knobs.get("stages_per_rank", 2))
        micro = int(knobs["microbatches"])
        if micro < 1 or per_rank < 1:
            raise ValueError(
                f"microbatches is {micro} and stages_per_rank is {per_rank}; expected at least 1"
            )
        if blocks is not None and blocks < ranks * per_rank:
            raise ValueError(f"{blocks} blocks cannot be cut into {ranks * per_rank} stages")
        return _made(name, ranks, per_rank, micro)

    @property
    def made(self) -> type[Any]:
        """Torch's class of this schedule."""
        return SCHEDULES[self.name].made

    @property
    def splits(self) -> bool:
        """Whether the schedule splits backward into halves for inputs and for weights."""
        return any(action.what in "IW" for order in self.orders for action in order)

    @property
    def stages(self) -> int:
        """The total number of stages of all ranks."""
        return self.ranks * self.per_rank

    def held(self, rank: int) -> tuple[int, ...]:
        """Return the indices of the stages of a rank, the earliest first."""
        if SCHEDULES[self.name].folded:
            return (rank, 2 * self.ranks - 1 - rank)
        return tuple(range(rank, self.stages, self.ranks))

    def holder(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        return next(r for r in range(self.ranks) if stage in self.held(r))

    @cached_property
    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of every rank in order.

        Raise ValueError if torch refuses the number of micro-batches.
        """
        if self.per_rank == 1 and self.name in ("gpipe", "1f1b"):
            ahead = {"gpipe": self.micro * self.ranks, "1f1b": 0}[self.name]
            if self.name == "1f1b" and self.micro < self.ranks:
                raise ValueError(
                    f"{self.micro} micro-batches cannot fill {self.ranks} stages; 1f1b needs at"
                    " least one micro-batch per stage"
                )
            return tuple(
                tuple(_one_stage(r, min(self.micro, ahead or self.ranks - r), self.micro))
                for r in range(self.ranks)
            )
        order = self.made(
            [self._stub(stage) for stage in self.held(0)],
            n_microbatches=self.micro,
            loss_fn=torch.nn.functional.mse_loss,
        ).pipeline_order
        return tuple(tuple(_plain(order[rank])) for rank in range(self.ranks))

    def _stub(self, stage: int) -> Any:
        """Return an object with the attributes of a stage that torch's schedules read."""
        return SimpleNamespace(
            stage_index=stage,
            num_stages=self.stages,
            group_size=self.ranks,
            group_rank=0,
            is_first=stage == 0,
            is_last=stage == self.stages - 1,
            submod=nn.Identity(),
            has_backward=True,
            device=torch.device("cpu"),
            group=None,
        )

    def played(self, weights: Sequence[float] = ()) -> PlayedSchedule:
        """Simulate the schedule.

        Each action starts as soon as its rank is free and its inputs are ready. ``weights`` are the
        relative amounts of work of the stages; without them all stages are equal. Raise ValueError
        if the order deadlocks.
        """
        costs = {
            (what, stage): cost * (weights[stage] if weights else 1.0)
            for what, cost in COSTS.items()
            for stage in range(self.stages)
        }
        ends: dict[Action, float] = {}
        free = [0.0] * self.ranks
        # When the forward of each micro-batch ends on each stage, and when the gradients of its
        # inputs, which the previous stage needs, are ready.
        forward = [[math.nan] * self.micro for _ in range(self.stages)]
        backward = [[math.nan] * self.micro for _ in range(self.stages)]
        places = [0] * self.ranks
        num_actions = sum(map(len, self.orders))
        while len(ends) < num_actions:
            before = len(ends)
            for rank, order in enumerate(self.orders):
                clock = free[rank]
                for place in range(places[rank], len(order)):
                    action = order[place]
                    what, stage, micro = action
                    if what == "F":
                        ready = forward[stage - 1][micro] if stage else 0.0
                    elif what == "W":
                        ready = backward[stage][micro]
                    else:
                        ready = forward[stage][micro]
                        if stage < self.stages - 1:
                            after = backward[stage + 1][micro]
                            ready = after if after > ready or after != after else ready
                    if ready != ready:  # nan: a required action has not ended
                        places[rank] = place
                        break
                    clock = (ready if ready > clock else clock) + costs[what, stage]
                    ends[action] = clock
                    if what == "F":
                        forward[stage][micro] = clock
                    elif what != "W":
                        backward[stage][micro] = clock
                else:
                    places[rank] = len(order)
                free[rank] = clock
            if len(ends) == before:
                raise ValueError(f"the order of {self} deadlocks: no rank can continue")
        work = sum(costs[a.what, a.stage] for order in self.orders for a in order)
        return PlayedSchedule(work / self.ranks / max(free), ends)

    def efficiency(self, weights: Sequence[float] = ()) -> float:
        """Return the largest possible fraction of time in which ranks compute.

        ``weights`` has the same meaning as in ``played``.
        """
        return _efficiency(self, tuple(weights))

    def most_in_flight(self, rank: int, weights: Callable[[int], float]) -> float:
        """Return the largest sum of ``weights(stage)`` over the micro-batches in flight on a rank.

        A micro-batch is in flight on a stage from its forward until its gradients of the stage's
        weights are computed.
        """
        signs = {"F": 1, "B": -1, "W": -1, "I": 0}
        change = {
            (word, s): sign * weights(s) for word, sign in signs.items() for s in self.held(rank)
        }
        held = itertools.accumulate(change[what, stage] for what, stage, _ in self.orders[rank])
        return max(0.0, max(held, default=0.0))

    def order(self) -> tuple[int, ...]:
        """Return the indices of micro-batches in the order in which weight gradients are added.

        Raise AssertionError if the stages have different orders.
        """
        orders = {
            tuple(
                a.micro
                for a in self.orders[self.holder(stage)]
                if a.stage == stage and a.what in "BW"
            )
            for stage in range(self.stages)
        }
        order, *others = orders
        if others:
            raise AssertionError(f"{self.name}: stages add their gradients in different orders")
        return order


@cache
def _made(name: str, ranks: int, per_rank: int, micro: int) -> Schedule:
    """Return a schedule with its orders.

    The result is cached, because the orders of hundreds of ranks take seconds to compute.
    """
    schedule = Schedule(name, ranks, per_rank, micro)
    _ = schedule.orders
    return schedule


@cache
def _efficiency(schedule: Schedule, weights: tuple[float, ...]) -> float:
    """Return the efficiency of a schedule, cached because several cases have this schedule."""
    return schedule.played(weights).efficiency


def _one_stage(stage: int, ahead: int, micro: int) -> Iterator[Action]:
    """Yield the actions of a rank with one stage.

    These are ``ahead`` forwards, then backwards and forwards in turn, then the remaining backwards.
    """
    for m in range(ahead):
        yield Action("F", stage, m)
    for m in range(micro):
        yield Action("B", stage, m)
        if m + ahead < micro:
            yield Action("F", stage, m + ahead)


def _plain(actions: Sequence[Any]) -> Iterator[Action]:
    """Yield torch's actions that compute. A pair of overlapped actions becomes two actions."""
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    for action in actions:
        for part in (action.sub_actions or (action,)) if action is not None else ():
            if (what := kinds.get(part.computation_type.name)) is not None:
                yield Action(what, part.stage_index, part.microbatch_index)
