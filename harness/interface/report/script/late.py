"""The rank that the others wait for."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from harness.analysis.samples import script
from harness.base.formatting import si
from harness.interface.report.script.row import ScriptRow
from harness.record import LaunchRecord


@dataclass(frozen=True)
class WaitedFor:
    """A rank that the others wait for, and for how long in a step (s)."""

    rank: int
    more_s: float


def late(row: ScriptRow) -> str:
    """A remark on the rank that the others wait for."""
    if late := late_in_most(row):
        return (
            f"rank {late.rank} comes to its backward pass {si(late.more_s, 's')} a step later than"
            " the others, which wait for it: a slow loader, device or core?"
        )
    if late := late_in_most(row, bursts=True):
        return (
            f"rank {late.rank} takes {si(late.more_s, 's')} a step longer than the others, most of"
            " it in a few steps, and they wait for it: an evaluation, a checkpoint or a log of its"
            " own?"
        )
    return ""


def late_in_most(row: ScriptRow, *, bursts: bool = False, quiet: bool = False) -> WaitedFor | None:
    """The rank that is late in more than half of the launches, and how long in the middle.

    ``bursts``: by mean steps, not by median ones; ``quiet``: as if the machine had been its alone.
    """
    late = [_late_in(launch, bursts=bursts, quiet=quiet) for launch in row.launches]
    ((rank, times),) = Counter(x.rank if x is not None else None for x in late).most_common(1)
    if rank is None or 2 * times <= len(late):
        return None
    return WaitedFor(rank, median(x.more_s for x in late if x is not None and x.rank == rank))


def _late_in(launch: LaunchRecord, *, bursts: bool, quiet: bool) -> WaitedFor | None:
    """The rank that is late in a launch."""
    if launch.steps is None:
        return None
    step_s = launch.steps.mean_s
    watched = [rank.watched for rank in launch.ranks if rank.watched is not None]
    ahead_s = [w.ahead_s + w.bursts_s * bursts for w in watched]
    if quiet:
        late = script.late(ahead_s, [0.0] * len(watched), step_s)
    else:
        queued_s = [step_s * (rank.waited_s or 0.0) / rank.window_s for rank in launch.ranks]
        late = script.late(ahead_s, queued_s, step_s, launch.foreign_load or 0.0)
    return None if late is None else WaitedFor(*late)
