"""Load: what others took from launches, at most. It can only have slowed them.

Three things are added up: the time that ranks waited for a core, that for which a CPU quota held
one back, and the CPU time that its work took beyond what it took in the case's best launch. The
last bounds what others cost through caches, memory and clocks: a rank that waits for its memory, or
runs at a lower clock, is on its core for longer. What slows down all launches alike is in the
subject's, too, which runs on more cores beside the same neighbour.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from harness.host import admission
from harness.record import LaunchRecord, Purpose, RunRecord

#: Less than this is what clock ticks tell: 10 ms in a third of a second.
LEAST_LOAD = 0.02
#: Busy time of a core is counted in these ticks, and may be one of them off.
TICK_S = 0.01
#: No rank is taken to have lost more: then nothing is known of it.
MOST_LOST = 0.99


def around(launches: Sequence[LaunchRecord]) -> bool:
    """Whether others were at work on the cores of these launches, on average."""
    loads = [launch.foreign_load for launch in launches if launch.foreign_load is not None]
    return bool(loads) and fmean(loads) > LEAST_LOAD


def lost(
    launches: Sequence[LaunchRecord], run: RunRecord, *, beside: bool, quota: bool = True
) -> float | None:
    """The share of their time that others can have taken from these launches, their mean.

    None where one of them does not know what others used. ``beside``: others were at work on this
    machine, if not on these cores. ``quota``: whether what a quota held back counts; it is no loss
    of stragglers that are planted by one.
    """
    shares = [_lost(launch, run, beside=beside, quota=quota) for launch in launches]
    known = [share for share in shares if share is not None]
    return fmean(known) if known and len(known) == len(shares) else None


def _lost(launch: LaunchRecord, run: RunRecord, *, beside: bool, quota: bool) -> float | None:
    if launch.denied is None:
        return None
    load = launch.foreign_load or 0.0
    waited = (launch.throttled or 0.0) if quota else 0.0
    if load > LEAST_LOAD:
        waited += _waited(launch, load)
    if load > LEAST_LOAD or beside:
        waited += _pressed(launch, run)
    if launch.late is not None:  # a scheduled stand-in shows it itself
        waited = min(waited, launch.late)
    return min(MOST_LOST, waited)


def _waited(launch: LaunchRecord, load: float) -> float:
    """The share of its window for which ranks can have waited for cores that others used.

    The kernel says how long their threads waited, one after another at worst, and for no longer
    than others worked on those cores. Where it does not say, all of that was on one rank's cores.
    """
    window_s = max((rank.window_s for rank in launch.ranks), default=0.0)
    waits = [rank.waited_s for rank in launch.ranks if rank.waited_s is not None]
    if not window_s or len(waits) < len(launch.ranks):
        return load * max(Counter(rank.host for rank in launch.ranks).values(), default=1)
    num_cores = len({(rank.host, cpu) for rank in launch.ranks for cpu in rank.affinity})
    return min(load * num_cores, sum(waits) / window_s)


def _pressed(launch: LaunchRecord, run: RunRecord) -> float:
    """CPU time of its steps beyond that of the case's best launch, as a share of its window."""
    alike = [x for x in run.by_case.get(launch.case, ()) if x.purpose in _ALIKE and x.usable]
    best = min((cpu for x in alike if (cpu := _cpu_of_step(x)) is not None), default=None)
    of_step = _cpu_of_step(launch)
    if best is None or of_step is None or launch.steps is None:
        return 0.0
    window_s = max(rank.window_s for rank in launch.ranks)
    return (of_step - best) * launch.steps.count / window_s if window_s else 0.0


#: Launches whose steps are the same work.
_ALIKE = (Purpose.PILOT, Purpose.PROBE, Purpose.TIMED)


def _cpu_of_step(launch: LaunchRecord) -> float | None:
    """CPU seconds of a mean step of the busiest rank."""
    if launch.steps is None or not launch.steps.count:
        return None
    return max((rank.cpu_s for rank in launch.ranks), default=0.0) / launch.steps.count


def sentence(launches: Sequence[LaunchRecord], name: str) -> str:
    """Who took how much from these launches of one arm, where it is worth a word."""
    known = [launch for launch in launches if launch.foreign_load is not None]
    if known and fmean(map(_sure, known)) > admission.FOREIGN_LOAD:
        share = fmean(launch.foreign_load or 0.0 for launch in known)
        return f"others used {share:.0%} of the cores of {name}"
    worst = max((launch.throttled or 0.0 for launch in launches), default=0.0)
    if worst > admission.THROTTLED:
        return f"a CPU quota held the ranks of {name} back for {worst:.0%} of the time"
    return ""


def _sure(launch: LaunchRecord) -> float:
    """The share of its cores that others used at least: a window of few ticks tells nothing."""
    window_s = max((rank.window_s for rank in launch.ranks), default=0.0)
    return max(0.0, (launch.foreign_load or 0.0) - TICK_S / window_s) if window_s else 0.0
