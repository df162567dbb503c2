"""A row of a script's table: one rung of its ladder."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.cases import Arm
from harness.record import LaunchRecord, ScriptObservations


@dataclass(frozen=True)
class ScriptRow:
    """One rung: its arm and its usable launches."""

    arm: Arm
    launches: Sequence[LaunchRecord]

    @property
    def seen(self) -> ScriptObservations:
        watched = self.launches[0].ranks[0].watched
        assert watched is not None
        return watched

    @property
    def of_ranks(self) -> Sequence[ScriptObservations]:
        """All ranks of the first launch, as hooks saw them."""
        ranks = self.launches[0].ranks
        return [rank.watched for rank in ranks if rank.watched is not None]

    @property
    def samples(self) -> float:
        return median(
            launch.consumed / launch.steps.count for launch in self.launches if launch.steps
        )
