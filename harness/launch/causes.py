"""Find the rank that ended a launch, and the first collective on which ranks diverged."""

import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.base.errors import LaunchError, SpecError
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Collective, RankEnd, RankError
from harness.record import Cause

#: One rank sends to another and only that one knows: such operations are numbered by pairs.
_PAIRED = ("send", "recv")
#: Seconds after the first rank of a collective from which the last one counts as late.
LATE_S = 1.0

#: By process group: each rank's collectives by their numbers.
Logs = dict[str, dict[int, dict[int, Collective]]]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first collective that not all did, by rank; "" = it has not come to it."""

    number: int
    did: Mapping[int, str]

    @property
    def usual(self) -> str:
        """The commonest of these; of two, whatever is more than nothing."""
        counts = Counter(self.did.values())
        return max(counts, key=lambda what: (counts[what], bool(what)))

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that did something else."""
        return tuple(rank for rank, what in self.did.items() if what != self.usual)

    @property
    def behind(self) -> frozenset[int]:
        """The ranks that have not come to it."""
        return frozenset(rank for rank, what in self.did.items() if not what)

    @property
    def sure(self) -> bool:
        """Whether there is one against several."""
        return len(self.odd) == 1 and len(self.did) > 2

    def __str__(self) -> str:
        does = self.did[min(self.odd)]
        if not self.usual:
            return f"is alone in collective {self.number}, {does}"
        if not does:
            return f"did not enter collective {self.number}, {self.usual}"
        if len(self.did) == 2:
            other = max(set(self.did) - set(self.odd))
            both = f"runs {does} as collective {self.number}, rank {other} runs {self.usual}"
            return f"{both}: of two, neither can be told to be wrong"
        return f"runs {does} as collective {self.number}, the others run {self.usual}"


def divergence(flights: Mapping[int, Sequence[Collective]]) -> Divergence | None:
    """Where ranks part for the first time; None if they do not."""
    for flying in _logs(flights).values():
        for number in range(_first(flying), max(map(max, flying.values())) + 1):
            at = {rank: log.get(number) for rank, log in flying.items()}
            did = {
                rank: f"{collective.operation} of {collective.sizes}" if collective else ""
                for rank, collective in at.items()
            }
            if len(set(did.values())) > 1:
                return Divergence(number=number, did=did)
    return None


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """The rank that came last to a collective, by so many seconds after the first."""

    rank: int
    number: int
    what: str
    by_s: float


def latest(flights: Mapping[int, Sequence[Collective]]) -> LateRank | None:
    """Who came late to the last collective that all did; None if nobody did."""
    last = [
        {rank: log[number] for rank, log in flying.items() if number in log}
        for flying in _logs(flights).values()
        if (number := min(map(max, flying.values()))) >= _first(flying)
    ]
    if not last:
        return None
    at = max(last, key=lambda at: max(collective.created_s for collective in at.values()))
    rank = max(at, key=lambda r: at[r].created_s)
    by_s = at[rank].created_s - min(collective.created_s for collective in at.values())
    if by_s < LATE_S:
        return None
    return LateRank(rank=rank, number=at[rank].number, what=at[rank].operation, by_s=by_s)


def _logs(flights: Mapping[int, Sequence[Collective]]) -> Logs:
    """The groups in which several ranks can be compared."""
    logs: Logs = {}
    for rank, entries in flights.items():
        for collective in entries:
            if collective.operation not in _PAIRED:
                logs.setdefault(collective.group, {}).setdefault(rank, {})[collective.number] = (
                    collective
                )
    return {group: flying for group, flying in logs.items() if len(flying) > 1}


def _first(flying: Mapping[int, Mapping[int, Collective]]) -> int:
    """The first number that every rank still has."""
    return max(map(min, flying.values()))


#: What an exception for want of memory says, on a device and on the host.
_MEMORY = re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|MemoryError", re.I)
#: Errors that a device reports for a peer's end, as NCCL and CUDA word them.
_DEVICE = re.compile(
    r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError"
    r"|illegal memory access|unspecified launch failure|CUDA error: uncorrectable"
)
#: What torch's detailed debugging says of a rank that broke step, in its two forms.
_MISMATCH = re.compile(
    r"Rank (\d+) is running (?:inconsistent )?collective: (.*?)(?:, but Rank|\. Collectives|$)",
    re.S,
)
_ABSENT = re.compile(
    r"[Rr]ank (\d+) failed to pass monitoredBarrier|Ranks? (\d+)[^.]*failed to pass"
)


#: Errors of ours, which say what is wrong and are no exception of a training.
_OURS = frozenset({LaunchError.__name__, SpecError.__name__})
#: The phase of a rank whose window is over: it waits for the others.
_THROUGH = Phase.FINISH.name.lower()


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A rank, what it did, and whether that is certain."""

    rank: int
    kind: str
    message: str
    sure: bool


def attribute(ends: Sequence[RankEnd], unreachable: Sequence[int] = ()) -> Cause | None:
    """The cause of a failed launch; None if every rank finished.

    In this order: a node that is gone; a rank's own exception; a signal that we did not send; an
    exit without a result; a node that the others cannot reach; in a hang the rank that is stopped,
    or that waits for others who are through, having made fewer updates; that is not inside torch
    where its victims wait; the one whose collectives differ; one that
    aborted; whoever came last, or was silent longest. A rank that reports a lost connection or a
    time-out is a victim; the one that said nothing is the suspect. One that was still at work is
    never sure to be it: it may only be slow. ``unreachable`` are numbers of nodes.
    """
    failed = [end for end in ends if not (end.finished and end.exit_code == 0)]
    if not failed:
        return None
    by_order = sorted(failed, key=lambda e: e.order)
    ways = (
        _lost,
        _raised,
        _signalled,
        _left,
        partial(_cut_off, unreachable=unreachable),
        _stopped,
        _short,
        _asleep,
        _out_of_step,
        _aborted,
        _late,
        _silent,
    )
    suspect = next(filter(None, (find(by_order) for find in ways)), None) or _noticed(by_order)
    culprit = next(end for end in ends if end.rank == suspect.rank)
    return Cause(
        **vars(suspect),
        phase=culprit.phase,
        step=culprit.step,
        node=culprit.node,
        victims=tuple(end.rank for end in failed if end.rank != culprit.rank),
    )


def _lost(failed: Sequence[RankEnd]) -> Suspect | None:
    if not (lost := [end for end in failed if end.lost]):
        return None
    first = lost[0]
    rank = min(end.rank for end in lost if end.lost == first.lost)
    sure = len({end.lost for end in lost}) == 1
    return Suspect(rank=rank, kind="node", message=first.lost, sure=sure)


def _raised(failed: Sequence[RankEnd]) -> Suspect | None:
    """An exception of a rank's own.

    An error of the device may only be what a dead peer's memory gives: such ranks are victims where
    another one raised or was killed by itself, and never surely to blame where several say it.
    """
    primary = [e for e in failed if e.error is not None and not e.error.peer]
    device = [e for e in primary if e.error is not None and _DEVICE.search(e.error.message)]
    clear = [e for e in primary if e not in device]
    if not clear and _signalled(failed) is not None:
        return None
    for end in (*clear, *device):
        assert end.error is not None
        message = _in_words(end.error)
        kind = "memory" if _MEMORY.search(message) else "exception"
        sure = end in clear or len(failed) == 1
        return Suspect(rank=end.rank, kind=kind, message=message, sure=sure)
    return None


def _in_words(error: RankError) -> str:
    """An error's kind and its first line; an error of this package says all in its words."""
    first, *_ = error.message.splitlines() or [""]
    return first if error.type in _OURS else f"{error.type}: {first}"


def _signalled(failed: Sequence[RankEnd]) -> Suspect | None:
    """A rank that gloo aborts only got what it did not expect: that is no cause."""
    for end in failed:
        if end.signal is None or end.killed or end.signal == signal.SIGABRT:
            continue
        name = f"signal {end.signal} ({signal.Signals(end.signal).name})"
        if end.out_of_memory:
            text = f"{name}: the kernel killed a process because memory ran out"
            return Suspect(rank=end.rank, kind="memory", message=text, sure=True)
        text = f"{name}, no Python error written"
        return Suspect(rank=end.rank, kind="signal", message=text, sure=True)
    return None


def _left(failed: Sequence[RankEnd]) -> Suspect | None:
    for end in failed:
        if not end.killed and end.signal is None and end.error is None:
            text = f"exited with status {end.exit_code} and left no result"
            return Suspect(rank=end.rank, kind="exit", message=text, sure=True)
    return None


def _cut_off(failed: Sequence[RankEnd], unreachable: Sequence[int]) -> Suspect | None:
    if not (unreached := [end for end in failed if end.node in unreachable]):
        return None
    text = f"node {unreached[0].node} cannot be reached by the others"
    rank = min(end.rank for end in unreached if end.node == unreached[0].node)
    return Suspect(rank=rank, kind="node", message=text, sure=len(unreachable) == 1)


def _stopped(failed: Sequence[RankEnd]) -> Suspect | None:
    for end in failed:
        # What could still write its stack was in the kernel for a moment only.
        if end.state == "T" or (end.state == "D" and not end.stack):
            what = "stopped" if end.state == "T" else "stuck inside the kernel"
            text = f"{what} for {end.silent_s:.0f} s"
            return Suspect(rank=end.rank, kind="hang", message=text, sure=True)
    return None


def _short(failed: Sequence[RankEnd]) -> Suspect | None:
    """The rank that has made the fewest updates, and waits for what the others, who are through,
    will never join.
    """
    through = [end for end in failed if end.killed and end.phase == _THROUGH]
    behind = [
        end for end in failed if end.killed and end.phase != _THROUGH and waits_in_torch(end.stack)
    ]
    if not through or not behind or any(_aborts(end) for end in failed):
        return None
    furthest = max(end.step for end in through)
    fewest = min(behind, key=lambda end: (end.step, end.rank))
    if fewest.step >= furthest:
        return None
    text = (
        f"has made {fewest.step} updates where rank {through[0].rank} made {furthest}: it leaves"
        " out steps of an optimizer that the others take"
    )
    return Suspect(rank=fewest.rank, kind="collective", message=text, sure=len(behind) == 1)


def _asleep(failed: Sequence[RankEnd]) -> Suspect | None:
    """The one rank that is elsewhere while all others wait, or have waited, inside torch.

    Where one has aborted by itself, the others may be anywhere.
    """
    if any(_aborts(end) for end in failed):
        return None
    silent = [end for end in failed if end.killed and end.error is None and end.stack]
    elsewhere = [end for end in silent if not waits_in_torch(end.stack)]
    if len(elsewhere) != 1 or len(failed) < 2:
        return None
    suspect = _silent(elsewhere)
    return suspect and replace(suspect, sure=elsewhere[0].state != "R")


def _out_of_step(failed: Sequence[RankEnd]) -> Suspect | None:
    """The rank that torch itself names, or whose collectives are not those of the others.

    One that is ahead of ranks which were still at work has done nothing wrong.
    """
    working = {end.rank for end in failed if _at_work(end)}
    if (by_torch := _told_by_torch(failed)) is not None:
        return replace(by_torch, sure=by_torch.sure and by_torch.rank not in working)
    if (parting := divergence(_flights(failed))) is None:
        return None
    slow = parting.behind & working
    if slow and not parting.usual:
        return None
    sure = parting.sure and not slow
    rank = min(parting.odd)
    return Suspect(rank=rank, kind="collective", message=str(parting), sure=sure)


def _flights(failed: Sequence[RankEnd]) -> dict[int, tuple[Collective, ...]]:
    return {end.rank: end.flight for end in failed if end.flight}


def _at_work(e: RankEnd) -> bool:
    """Whether a rank was ended while it ran: a kernel's word, or its stack's."""
    return e.killed and (e.state == "R" or (e.stack != "" and not waits_in_torch(e.stack)))


def _told_by_torch(failed: Sequence[RankEnd]) -> Suspect | None:
    """Reads the finding of torch's detailed debugging: the rank that most reports differ from."""
    absent: Counter[int] = Counter()
    running: dict[int, str] = {}
    for end in failed:
        message = end.error.message if end.error is not None else ""
        absent.update(int(rank) for rank in _ABSENT.findall(message))
        running |= {int(rank): what.strip() for rank, what in _MISMATCH.findall(message)}
    if absent:
        rank = absent.most_common(1)[0][0]
        text = "did not enter a collective in which the others wait"
        return Suspect(rank=rank, kind="collective", message=text, sure=len(absent) == 1)
    shapes = Counter(_shape(what) for what in running.values())
    if len(running) < 3 or len(shapes) != 2 or shapes.most_common()[-1][1] != 1:
        return None
    odd = shapes.most_common()[-1][0]
    rank = next(r for r, what in running.items() if _shape(what) == odd)
    text = f"runs {running[rank]}, the others do not"
    return Suspect(rank=rank, kind="collective", message=text, sure=True)


def _shape(what: str) -> str:
    """A collective as torch describes it, without its number."""
    return re.sub(r"SequenceNumber=\d+, ", "", what)


def _aborts(e: RankEnd) -> bool:
    return e.signal == signal.SIGABRT and not e.killed


def _aborted(failed: Sequence[RankEnd]) -> Suspect | None:
    """The first of those that aborted while their collectives were those of the others."""
    if not (aborted := [end for end in failed if _aborts(end)]):
        return None
    text = "signal 6 (SIGABRT): the rank aborted itself, see its log"
    return Suspect(rank=aborted[0].rank, kind="signal", message=text, sure=len(aborted) == 1)


def _silent(failed: Sequence[RankEnd]) -> Suspect | None:
    silent = sorted(
        (end for end in failed if end.killed and end.error is None),
        key=lambda end: (waits_in_torch(end.stack), end.step, -end.silent_s),
    )
    if not silent:
        return None
    suspect = silent[0]
    message = f"silent for {suspect.silent_s:.0f} s"
    if frame := innermost(suspect.stack):
        message += f" in {frame[0]}, line {frame[1]}"
        caller = _own_frame(suspect.stack)
        if caller not in (None, frame):
            message += f", called from {caller[0]}, line {caller[1]}"
    sure = len(silent) == 1 and suspect.state != "R"
    return Suspect(rank=suspect.rank, kind="hang", message=message, sure=sure)


def _late(failed: Sequence[RankEnd]) -> Suspect | None:
    """Where all did the same, and one did it so late that others had given up."""
    if (late := latest(_flights(failed))) is None:
        return None
    text = f"entered collective {late.number}, {late.what}, {late.by_s:.1f} s after the first rank"
    return Suspect(rank=late.rank, kind="late", message=text, sure=False)


def _noticed(failed: Sequence[RankEnd]) -> Suspect:
    """Nothing but ranks that only noticed: the first of them, and no certainty."""
    first = failed[0]
    message = "ended without any message"
    if first.error is not None:
        message = _in_words(first.error)
    elif first.signal is not None:
        message = f"signal {first.signal} ({signal.Signals(first.signal).name})"
    return Suspect(rank=first.rank, kind="peer", message=message, sure=False)


def innermost(stack: str) -> tuple[str, int] | None:
    """File and line that a rank's main thread was at, from faulthandler's text."""
    return next(_frames(stack), None)


def _own_frame(stack: str) -> tuple[str, int] | None:
    """The innermost frame of the main thread that belongs to no library."""
    libraries = ("/lib/python", "site-packages", "<")
    return next(
        (
            frame
            for frame in _frames(stack)
            if not any(library in frame[0] for library in libraries)
        ),
        None,
    )


def _frames(stack: str) -> Iterator[tuple[str, int]]:
    _, _, main = stack.rpartition("(most recent call first):")
    for match in re.finditer(r'File "([^"]+)", line (\d+)', main):
        yield match[1], int(match[2])


def waits_in_torch(stack: str) -> bool:
    """Whether a rank was inside torch, where those wait who wait for somebody else."""
    frame = innermost(stack)
    return frame is not None and "/torch/" in frame[0]
