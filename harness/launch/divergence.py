"""Where ranks part: the collectives that each was at, laid beside each other.

Process groups number their collectives, so a rank that skipped one is one behind at the end, or
runs another operation under the same number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.launch.wire.messages import Collective

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
