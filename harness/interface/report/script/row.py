"""Define a row of a script's table: one world size of its scaling sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.cases import Arm
from harness.record import LaunchRecord, ScriptObservations


@dataclass(frozen=True)
class ScriptRow:
    """One world size: its arm (its case with the role in the comparison) and its usable
    launches.
    """

    arm: Arm
    launches: Sequence[LaunchRecord]

    @property
    def seen(self) -> ScriptObservations:
        watched = self.launches[0].ranks[0].watched
        assert watched is not None
        return watched

    @property
    def of_ranks(self) -> Sequence[ScriptObservations]:
        """Return the observations of all ranks of the first launch."""
        ranks = self.launches[0].ranks
        return [rank.watched for rank in ranks if rank.watched is not None]

    @property
    def shared_cores(self) -> tuple[int, ...]:
        """Return the cores to which all ranks of a machine are bound, if they are fewer than these.

        The result is empty if no machine has such ranks.
        """
        of_hosts: dict[str, list[tuple[int, ...]]] = {}
        for rank in self.launches[0].ranks:
            if rank.watched is not None and rank.watched.affinity:
                of_hosts.setdefault(rank.host, []).append(rank.watched.affinity)
        shared = (
            of_ranks[0]
            for of_ranks in of_hosts.values()
            if 1 < len(of_ranks) > len(of_ranks[0]) and len(set(of_ranks)) == 1
        )
        return next(shared, ())

    @property
    def samples(self) -> float:
        return median(
            launch.consumed / launch.steps.count for launch in self.launches if launch.steps
        )
