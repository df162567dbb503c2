"""Find the rank that the other ranks wait for."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from harness.analysis.script.late import late as late_rank
from harness.base.formatting import si
from harness.interface.report.script.row import ScriptRow
from harness.record import LaunchRecord


@dataclass(frozen=True)
class WaitedFor:
    """A rank that the other ranks wait for, and the seconds that they wait in a step."""

    rank: int
    more_s: float


def late(row: ScriptRow) -> str:
    """Return a remark on the rank that the others wait for; empty if there is none."""
    if late := late_in_most(row):
        return (
            f"rank {late.rank} comes to its backward pass {si(late.more_s, 's')} a step later than"
            " the others, which wait for it: a slow loader, device or core?"
        )
    if late := late_in_most(row, bursts=True):
        return (
            f"rank {late.rank} takes {si(late.more_s, 's')} a step longer than the others, most of"
            " it in a few steps, and they wait for it: an evaluation, a checkpoint or a log on"
            " this rank only?"
        )
    return ""


def late_in_most(row: ScriptRow, *, bursts: bool = False, quiet: bool = False) -> WaitedFor | None:
    """Return the rank that is late in more than half of the launches, with its median delay.

    ``bursts`` compares mean steps instead of median steps. ``quiet`` ignores the load of other
    processes.
    """
    late = [_late_in(launch, bursts=bursts, quiet=quiet) for launch in row.launches]
    ((rank, times),) = Counter(x.rank if x is not None else None for x in late).most_common(1)
    if rank is None or 2 * times <= len(late):
        return None
    return WaitedFor(rank, median(x.more_s for x in late if x is not None and x.rank == rank))


def _late_in(launch: LaunchRecord, *, bursts: bool, quiet: bool) -> WaitedFor | None:
    """Return the rank that is late in a launch; None if no rank is."""
    if launch.steps is None:
        return None
    step_s = launch.steps.mean_s
    watched = [rank.watched for rank in launch.ranks if rank.watched is not None]
    ahead_s = [w.ahead_s + w.bursts_s * bursts for w in watched]
    if quiet:
        late = late_rank(ahead_s, [0.0] * len(watched), step_s)
    else:
        queued_s = [step_s * (rank.waited_s or 0.0) / rank.window_s for rank in launch.ranks]
        late = late_rank(ahead_s, queued_s, step_s, launch.foreign_load or 0.0)
    return None if late is None else WaitedFor(*late)
