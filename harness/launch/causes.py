"""Find the rank that ended a launch, and the first collective on which ranks diverged."""

import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.base.errors import LaunchError, NotComparableError, SpecError
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Collective, RankEnd, RankError
from harness.record import Cause
from harness.record.launch import NOT_COMPARABLE

#: Point-to-point operations. Only two ranks take part and number them, so the numbers of different
#: pairs cannot be compared.
_PAIRED = ("send", "recv")
#: The last rank of a collective counts as late if it enters at least this many seconds after the
#: first rank.
LATE_S = 1.0

#: All collectives by process group, then by rank, then by sequence number.
Logs = dict[str, dict[int, dict[int, Collective]]]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first collective that differs between ranks.

    ``number`` is its sequence number. ``did`` maps each rank to the collective that it issued
    under this number, as text; the text is empty if the rank has not reached this number.
    """

    number: int
    did: Mapping[int, str]

    @property
    def usual(self) -> str:
        """The collective that most ranks issued, as text.

        In a tie, a collective is preferred to the empty text.
        """
        counts = Counter(self.did.values())
        return max(counts, key=lambda what: (counts[what], bool(what)))

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks whose collective differs from the usual one."""
        return tuple(rank for rank, what in self.did.items() if what != self.usual)

    @property
    def behind(self) -> frozenset[int]:
        """The ranks that have not reached this collective."""
        return frozenset(rank for rank, what in self.did.items() if not what)

    @property
    def sure(self) -> bool:
        """Whether exactly one rank differs from at least two others."""
        return len(self.odd) == 1 and len(self.did) > 2

    def __str__(self) -> str:
        does = self.did[min(self.odd)]
        if not self.usual:
            return f"is the only rank in collective {self.number}, {does}"
        if not does:
            return f"did not enter collective {self.number}, {self.usual}"
        if len(self.did) == 2:
            other = max(set(self.did) - set(self.odd))
            both = f"runs {does} as collective {self.number}, rank {other} runs {self.usual}"
            return f"{both}: with the evidence of two ranks it is unknown which one is wrong"
        return f"runs {does} as collective {self.number}, the other ranks run {self.usual}"


def divergence(flights: Mapping[int, Sequence[Collective]]) -> Divergence | None:
    """Return the first collective that differs between ranks, or None if none does.

    ``flights`` maps each rank to the entries of its flight recorder. Only numbers that every rank
    still has in its buffer, and later ones, are compared.
    """
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
    """The rank that entered a collective last, ``by_s`` seconds after the first rank.

    ``what`` is the operation, ``number`` its sequence number.
    """

    rank: int
    number: int
    what: str
    by_s: float


def latest(flights: Mapping[int, Sequence[Collective]]) -> LateRank | None:
    """Return the rank that entered the last common collective late, or None if none was late.

    A common collective is one that all ranks issued. ``LATE_S`` defines what is late.
    """
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
    """Group the collectives by process group, and keep the groups with at least two ranks."""
    logs: Logs = {}
    for rank, entries in flights.items():
        for collective in entries:
            if collective.operation not in _PAIRED:
                logs.setdefault(collective.group, {}).setdefault(rank, {})[collective.number] = (
                    collective
                )
    return {group: flying for group, flying in logs.items() if len(flying) > 1}


def _first(flying: Mapping[int, Mapping[int, Collective]]) -> int:
    """Return the first number that every rank still has in its buffer."""
    return max(map(min, flying.values()))


#: Texts of exceptions about missing memory, on a device and on the host.
_MEMORY = re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|MemoryError", re.I)
#: Texts of errors from NCCL and CUDA that a device may report only because a peer has ended.
_DEVICE = re.compile(
    r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError"
    r"|illegal memory access|unspecified launch failure|CUDA error: uncorrectable"
)
#: Texts that torch writes with TORCH_DISTRIBUTED_DEBUG=DETAIL about a rank whose collective
#: differs (first pattern), or that did not enter it (second pattern).
_MISMATCH = re.compile(
    r"Rank (\d+) is running (?:inconsistent )?collective: (.*?)(?:, but Rank|\. Collectives|$)",
    re.S,
)
_ABSENT = re.compile(
    r"[Rr]ank (\d+) failed to pass monitoredBarrier|Ranks? (\d+)[^.]*failed to pass"
)


#: Errors of this package. Their message is complete, so the type is not shown.
_OURS = frozenset(error.__name__ for error in (LaunchError, NotComparableError, SpecError))
#: The phase of a rank that has finished its measurement window and waits for the other ranks.
_THROUGH = Phase.FINISH.name.lower()


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A rank that may have caused the failure, and what it did.

    ``kind`` is as in ``Cause``. ``sure`` means that the evidence excludes every other rank.
    """

    rank: int
    kind: str
    message: str
    sure: bool


#: Words about a rank that trains on after another rank has left.
PARTED = "went on without it"


def attribute(ends: Sequence[RankEnd], unreachable: Sequence[int] = ()) -> Cause | None:
    """Return the cause of a failed launch, or None if every rank finished.

    The first of these kinds of evidence that applies names the rank:

    1. its node is lost;
    2. it raised an exception that does not only report the loss of a peer;
    3. it died from a signal that its agent did not send;
    4. it exited without a result;
    5. the other nodes cannot reach its node;
    6. in a hang, it is stopped, or stuck in the kernel;
    7. its loader ended after fewer batches than another rank has drawn;
    8. in a hang, it made fewer updates than ranks that have finished, and waits for them;
    9. in a hang, it is the only rank that is not waiting inside torch;
    10. its collectives differ from those of the other ranks;
    11. it aborted itself;
    12. it entered the last common collective late;
    13. it was silent for the longest time.

    A rank that reports a lost connection or a time-out is a victim, and a rank that reported
    nothing is the suspect. A rank that was still working is never a sure cause, because it may only
    be slow. ``unreachable`` holds the numbers of nodes that other nodes could not connect to.
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
        _exhausted,
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
    """Return the first rank of a lost node."""
    if not (lost := [end for end in failed if end.lost]):
        return None
    first = lost[0]
    rank = min(end.rank for end in lost if end.lost == first.lost)
    sure = len({end.lost for end in lost}) == 1
    return Suspect(rank=rank, kind="node", message=first.lost, sure=sure)


def _raised(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the first rank that raised an exception which does not only report a lost peer.

    A device error may only be a consequence of a peer's death. Ranks with such an error are
    victims if another rank raised a different exception or was killed by a signal. They are never
    a sure cause if several ranks failed.
    """
    primary = [e for e in failed if e.error is not None and not e.error.peer]
    device = [e for e in primary if e.error is not None and _DEVICE.search(e.error.message)]
    clear = [e for e in primary if e not in device]
    if not clear and _signalled(failed) is not None:
        return None
    for end in (*clear, *device):
        assert end.error is not None
        message = _in_words(end.error) + _parted(end, failed)
        kind = "memory" if _MEMORY.search(message) else "exception"
        if end.error.type == NotComparableError.__name__:
            kind = NOT_COMPARABLE
        sure = end in clear or len(failed) == 1
        return Suspect(rank=end.rank, kind=kind, message=message, sure=sure)
    return None


def _parted(end: RankEnd, failed: Sequence[RankEnd]) -> str:
    """Return a question if a rank's script ended while another rank needed it, or ""."""
    left = [e.rank for e in failed if e is not end and e.error is not None and e.error.peer]
    if not left or end.error is None or "the script ended after" not in end.error.message:
        return ""
    return (
        f", and rank {left[0]} {PARTED}: does each rank decide alone when to stop (early stopping"
        " by its own loss)?"
    )


def _in_words(error: RankError) -> str:
    """Return an error's type and first line; leave out the type of this package's errors."""
    first, *_ = error.message.splitlines() or [""]
    return first if error.type in _OURS else f"{error.type}: {first}"


def _signalled(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the first rank that died from a signal that its agent did not send.

    SIGABRT does not count here: gloo aborts a rank that received unexpected data, and then another
    rank is the cause.
    """
    for end in failed:
        if end.signal is None or end.killed or end.signal == signal.SIGABRT:
            continue
        name = f"signal {end.signal} ({signal.Signals(end.signal).name})"
        if end.out_of_memory:
            text = f"{name}: the kernel killed a process because memory ran out"
            return Suspect(rank=end.rank, kind="memory", message=text, sure=True)
        text = f"{name}, and the rank wrote no Python error"
        return Suspect(rank=end.rank, kind="signal", message=text, sure=True)
    return None


def _left(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the first rank that exited by itself, without an error and without a result."""
    for end in failed:
        if not end.killed and end.signal is None and end.error is None:
            text = f"exited with status {end.exit_code} and left no result"
            return Suspect(rank=end.rank, kind="exit", message=text, sure=True)
    return None


def _cut_off(failed: Sequence[RankEnd], unreachable: Sequence[int]) -> Suspect | None:
    """Return the first rank of a node to which the other nodes cannot connect."""
    if not (unreached := [end for end in failed if end.node in unreachable]):
        return None
    text = f"the other nodes cannot reach node {unreached[0].node}"
    rank = min(end.rank for end in unreached if end.node == unreached[0].node)
    return Suspect(rank=rank, kind="node", message=text, sure=len(unreachable) == 1)


def _stopped(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the first rank whose process is stopped (T) or stuck in the kernel (D)."""
    for end in failed:
        # A rank that could still write its stack was inside the kernel only for a moment.
        if end.state == "T" or (end.state == "D" and not end.stack):
            what = "stopped" if end.state == "T" else "stuck inside the kernel"
            text = f"{what} for {end.silent_s:.0f} s"
            return Suspect(rank=end.rank, kind="hang", message=text, sure=True)
    return None


def _exhausted(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the rank whose loader ended after fewer batches than another rank has drawn.

    In a loop over batches, ranks with unequal numbers of batches part at the end of a pass.
    """
    loops = [(end, end.loop) for end in failed if end.loop is not None]
    for end, loop in sorted(loops, key=lambda pair: (-pair[1].passes, pair[1].length)):
        for other, drawn in loops:
            if drawn.passes == loop.passes - 1 and drawn.batches > loop.length:
                text = (
                    f"its loader ended after {loop.length} batches, and rank {other.rank} goes on"
                    f" with batch {drawn.batches}: give all ranks equally many batches"
                    " (DistributedSampler, drop_last, shards of one length), or train within"
                    " DistributedDataParallel's join()"
                )
                return Suspect(rank=end.rank, kind="collective", message=text, sure=True)
    return None


def _short(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the rank with the fewest updates, if it waits for ranks that have finished.

    It waits in a collective that the finished ranks will never join.
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
        f"has made {fewest.step} updates, rank {through[0].rank} has made {furthest}: it skips"
        " optimizer steps that the other ranks take"
    )
    return Suspect(rank=fewest.rank, kind="collective", message=text, sure=len(behind) == 1)


def _asleep(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the only rank outside torch, if all other ranks wait, or have waited, inside torch.

    Return None if a rank aborted itself, because the other ranks' stacks then prove nothing.
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
    """Return the rank that torch names, or the first rank whose collective is not the usual one.

    A rank that is only ahead of ranks which were still working is not a suspect.
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
    """Return the flight recorder's entries of the ranks that wrote any."""
    return {end.rank: end.flight for end in failed if end.flight}


def _at_work(e: RankEnd) -> bool:
    """Return whether a rank was working when its agent killed it.

    The evidence is its process state, or a stack outside torch.
    """
    return e.killed and (e.state == "R" or (e.stack != "" and not waits_in_torch(e.stack)))


def _told_by_torch(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the rank that the messages of TORCH_DISTRIBUTED_DEBUG=DETAIL single out.

    That is the rank named as absent most often, or the only one whose collective differs.
    """
    absent: Counter[int] = Counter()
    running: dict[int, str] = {}
    for end in failed:
        message = end.error.message if end.error is not None else ""
        absent.update(int(rank) for rank in _ABSENT.findall(message))
        running |= {int(rank): what.strip() for rank, what in _MISMATCH.findall(message)}
    if absent:
        rank = absent.most_common(1)[0][0]
        text = "did not enter a collective in which the other ranks wait"
        return Suspect(rank=rank, kind="collective", message=text, sure=len(absent) == 1)
    shapes = Counter(_shape(what) for what in running.values())
    if len(running) < 3 or len(shapes) != 2 or shapes.most_common()[-1][1] != 1:
        return None
    odd = shapes.most_common()[-1][0]
    rank = next(r for r, what in running.items() if _shape(what) == odd)
    text = f"runs {running[rank]}, the other ranks do not"
    return Suspect(rank=rank, kind="collective", message=text, sure=True)


def _shape(what: str) -> str:
    """Return torch's description of a collective without its sequence number."""
    return re.sub(r"SequenceNumber=\d+, ", "", what)


def _aborts(e: RankEnd) -> bool:
    """Return whether a rank died from a SIGABRT that its agent did not send."""
    return e.signal == signal.SIGABRT and not e.killed


def _aborted(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the first rank that aborted itself although its collectives did not differ."""
    if not (aborted := [end for end in failed if _aborts(end)]):
        return None
    text = "signal 6 (SIGABRT): the rank aborted itself, see its log"
    return Suspect(rank=aborted[0].rank, kind="signal", message=text, sure=len(aborted) == 1)


def _silent(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the most suspicious rank without an error among the ranks that the agent killed.

    A rank outside torch comes first, then the lowest step, then the longest silence.
    """
    silent = sorted(
        (end for end in failed if end.killed and end.error is None),
        key=lambda end: (waits_in_torch(end.stack), end.step, -end.silent_s),
    )
    if not silent:
        return None
    suspect = silent[0]
    message = f"made no progress for {suspect.silent_s:.0f} s"
    if frame := innermost(suspect.stack):
        message += f" in {frame[0]}, line {frame[1]}"
        caller = _own_frame(suspect.stack)
        if caller not in (None, frame):
            message += f", called from {caller[0]}, line {caller[1]}"
    sure = len(silent) == 1 and suspect.state != "R"
    return Suspect(rank=suspect.rank, kind="hang", message=message, sure=sure)


def _late(failed: Sequence[RankEnd]) -> Suspect | None:
    """Return the rank that entered a collective so late that other ranks had given up."""
    if (late := latest(_flights(failed))) is None:
        return None
    text = f"entered collective {late.number}, {late.what}, {late.by_s:.1f} s after the first rank"
    return Suspect(rank=late.rank, kind="late", message=text, sure=False)


def _noticed(failed: Sequence[RankEnd]) -> Suspect:
    """Return the rank that ended first, if every failed rank only reports that a peer is gone."""
    first = failed[0]
    message = "ended without any message"
    if first.error is not None:
        message = _in_words(first.error)
    elif first.signal is not None:
        message = f"signal {first.signal} ({signal.Signals(first.signal).name})"
    return Suspect(rank=first.rank, kind="peer", message=message, sure=False)


def innermost(stack: str) -> tuple[str, int] | None:
    """Return the file and line at the top of a rank's main thread, from faulthandler's text."""
    return next(_frames(stack), None)


def _own_frame(stack: str) -> tuple[str, int] | None:
    """Return the innermost frame of the main thread that is not in a library."""
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
    """Yield file and line of each frame of the main thread, the innermost first."""
    _, _, main = stack.rpartition("(most recent call first):")
    for match in re.finditer(r'File "([^"]+)", line (\d+)', main):
        yield match[1], int(match[2])


def waits_in_torch(stack: str) -> bool:
    """Return whether the innermost frame is inside torch, where ranks wait for each other."""
    frame = innermost(stack)
    return frame is not None and "/torch/" in frame[0]
