"""Two independent simulations of pipelines agree: torch's order of work, which the ranks use, and
the schedules of papers, which predictions use.
"""

from __future__ import annotations

import pytest

from harness.features.foresight.physics import simulate
from harness.features.foresight.physics.schedules import Durations, PipelineSchedule
from harness.training.parallel.schedule import Schedule

#: The same durations as in the other simulation: 1 for a forward, 2 for a backward pass.
EQUAL = Durations(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "schedule", "chunks"),
    [
        ("gpipe", PipelineSchedule.ALL_FORWARD, 1),
        ("1f1b", PipelineSchedule.ONE_EACH, 1),
        ("interleaved", PipelineSchedule.INTERLEAVED, 2),
    ],
)
@pytest.mark.parametrize(("ranks", "micro"), [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_both_simulations_have_the_same_bubble(
    name: str, schedule: PipelineSchedule, chunks: int, ranks: int, micro: int
) -> None:
    played = Schedule.of(dict(schedule=name, microbatches=micro, stages_per_rank=chunks), ranks)
    foreseen = micro / simulate.units(schedule, ranks, micro, EQUAL, chunks)
    assert played.played().efficiency == pytest.approx(foreseen, rel=1e-9)
