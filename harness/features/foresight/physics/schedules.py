"""Pipeline schedules: the order of work of each stage, and their bubbles in closed form.

F is a forward pass, B the gradient of its input, and W the gradient of its weights. The closed
forms are from Narayanan et al. (SC'21) and Qi et al. (Zero Bubble, arXiv 2401.10241). They hold if
transfers between stages cost nothing.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class PipelineSchedule(StrEnum):
    """A fixed order of work, or for zero-bubble schedules a rule by which a stage chooses."""

    ALL_FORWARD = "GPipe"
    ONE_EACH = "1F1B"
    INTERLEAVED = "1F1B-I"
    ZERO_1P = "ZB-1p"
    ZERO_2P = "ZB-2p"

    @property
    def splits(self) -> bool:
        """Return whether gradients of weights and gradients of inputs are computed separately."""
        return self in (PipelineSchedule.ZERO_1P, PipelineSchedule.ZERO_2P)


#: Spellings in papers and configurations; the first match counts.
_WRITTEN = (
    (r"zb-?\s?(h2|2p)", PipelineSchedule.ZERO_2P),
    (r"zb-?\s?(h1|1p)", PipelineSchedule.ZERO_1P),
    (r"1f1b-?i\b|interleav", PipelineSchedule.INTERLEAVED),
    (r"1f1b", PipelineSchedule.ONE_EACH),
    (r"g[-_]?pipe", PipelineSchedule.ALL_FORWARD),
)


def schedule_of(words: str) -> PipelineSchedule | None:
    """Return the schedule that a text names, or None."""
    low = words.lower()
    return next((schedule for written, schedule in _WRITTEN if re.search(written, low)), None)


class StageWork(NamedTuple):
    """The work of a stage on one micro-batch in one chunk.

    ``kind`` is "F" for the forward pass or "B" for the whole backward pass (B and W).
    """

    kind: str
    micro: int
    chunk: int


class Durations(NamedTuple):
    """The times that one stage needs for a micro-batch, in all of its chunks together.

    ``forward``, ``backward`` and ``weights`` are the times of F, B and W (see the module's
    docstring), and ``hop`` is the time of a transfer to the next stage. All have the same unit.
    """

    forward: float
    backward: float
    weights: float
    hop: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.weights

    def of(self, kind: str) -> float:
        return {"F": self.forward, "B": self.backward, "W": self.weights}[kind]


def orders(
    schedule: PipelineSchedule, stages: int, micros: int, chunks: int = 1
) -> list[list[StageWork]]:
    """Return the order of work of each stage, for schedules that do not split the backward."""
    assert not schedule.splits, "zero-bubble schedules have no fixed order"
    forward = _turns(stages, micros, chunks, range(chunks))
    backward = _turns(stages, micros, chunks, range(chunks - 1, -1, -1))
    return [
        _one_stage(forward, backward, _ahead(schedule, stages, stage, len(forward), chunks))
        for stage in range(stages)
    ]


def _turns(stages: int, micros: int, chunks: int, turn: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs (micro-batch, chunk) of a stage in their order.

    The stage takes a group of ``stages`` micro-batches through one chunk, then through the next.
    """
    if chunks == 1:
        return [(micro, 0) for micro in range(micros)]
    return [
        (micro, chunk)
        for first in range(0, micros, stages)
        for chunk in turn
        for micro in range(first, min(first + stages, micros))
    ]


def _ahead(schedule: PipelineSchedule, stages: int, stage: int, total: int, chunks: int) -> int:
    """Return how many forward passes a stage does before its first backward."""
    if schedule is PipelineSchedule.ALL_FORWARD:
        return total
    after = stages - 1 - stage
    return min(total, after + 1 if chunks == 1 else 2 * after + (chunks - 1) * stages + 1)


def _one_stage(
    forward: Sequence[tuple[int, int]], backward: Sequence[tuple[int, int]], ahead: int
) -> list[StageWork]:
    work = [StageWork("F", *turn) for turn in forward[:ahead]]
    for done, turn in enumerate(backward):
        work.append(StageWork("B", *turn))
        if ahead + done < len(forward):
            work.append(StageWork("F", *forward[ahead + done]))
    return work


def bubble_s(schedule: PipelineSchedule, stages: int, took: Durations, chunks: int = 1) -> float:
    """Return the seconds that the busiest stage idles in a step, for any number of micro-batches.

    For ZB-2p this holds if F, B and W are equal and there are at least 2 p - 1 micro-batches.
    """
    idle = stages - 1
    if schedule is PipelineSchedule.ZERO_1P:
        return idle * (took.forward + took.backward - took.weights)
    if schedule is PipelineSchedule.ZERO_2P:
        return idle * (took.forward + took.backward - 2 * took.weights)
    return idle * took.total / chunks
