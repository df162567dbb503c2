"""Two programs play pipelines, and neither is made of the other: torch's own order of work, played
by the ranks' side, and the schedules as papers write them, played for predictions. They agree.
"""

from __future__ import annotations

import pytest

from harness.features.foresight.physics import simulate
from harness.features.foresight.physics.schedules import Durations, PipelineSchedule
from harness.training.parallel.schedule import Schedule

#: As long as the other player's: a forward of 1, and a backward of 2.
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
def test_both_lose_as_much_to_the_bubble(
    name: str, schedule: PipelineSchedule, chunks: int, ranks: int, micro: int
) -> None:
    played = Schedule.of(dict(schedule=name, microbatches=micro, stages_per_rank=chunks), ranks)
    foreseen = micro / simulate.units(schedule, ranks, micro, EQUAL, chunks)
    assert played.played().efficiency == pytest.approx(foreseen, rel=1e-9)
