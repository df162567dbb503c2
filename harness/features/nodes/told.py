"""Suspects: what rounds of pairs came to, by their hosts; ``verify`` derives them again."""

from collections.abc import Iterator, Sequence

from harness.features.nodes import rounds
from harness.features.nodes.rounds import Board, TimedPair
from harness.record import RunRecord
from harness.record.fabric import Paired, Slow, Suspects

AUDIT = "suspects"
#: A training's step differs by this share before a node is named, a link's rate by that.
STEP = rounds.LEAST_SLOWER
LINK = 0.1
#: Nodes that a sentence names.
NODES_SHOWN = 8
#: Draws the partners of a run.
SEED = 0


def hosts(names: Sequence[str], num_nodes: int) -> tuple[str, ...]:
    """The hosts of nodes; those that are emulated on one machine by their numbers."""
    if len({*names}) == num_nodes:
        return tuple(names)
    return tuple(f"node {i}" for i in range(num_nodes))


def least(case: str) -> float:
    """By which share something must be slower to be named."""
    return STEP if case else LINK


def wanted(case: str) -> float:
    """The slowness that no node may hide."""
    return rounds.WANTED * least(case)


def suspects(pairs: Sequence[Paired], of: Sequence[str], case: str, most: int) -> Suspects:
    """Names the slow ones of these hosts, by all that was measured of them in ``most`` rounds at
    most.
    """
    conclusions = rounds.conclude(seen(pairs, of), len(of), least(case))
    known = _board(pairs, of, case)
    slow = [
        Slow(
            hosts=tuple(of[node] for node in conclusion.nodes),
            slower=conclusion.slower,
            log_evidence=conclusion.log_evidence,
        )
        for conclusion in conclusions
    ]
    links = [slower.hosts for slower in slow if len(slower.hosts) == 2]
    return Suspects(
        pairs=tuple(pairs),
        case=case,
        slow=tuple(slow),
        nodes=tuple(slower.hosts[0] for slower in slow if len(slower.hosts) == 1),
        links=tuple(next(pair for pair in pairs if {pair.a, pair.b} == {*link}) for link in links),
        hosts=tuple(of),
        wanted=wanted(case),
        most=most,
        undecided=tuple(of[n] for n in sorted(known.open_nodes)),
    )


def _board(pairs: Sequence[Paired], of: Sequence[str], case: str) -> Board:
    return rounds.board(tuple(seen(pairs, of)), len(of), least(case), wanted(case))


def seen(pairs: Sequence[Paired], of: Sequence[str]) -> list[TimedPair]:
    """Pairs that were timed, by the numbers of their nodes."""
    number = {host: i for i, host in enumerate(of)}
    return [
        TimedPair(number[pair.a], number[pair.b], pair.round, pair.time_s)
        for pair in pairs
        if pair.time_s is not None
    ]


def hidden(suspected: Suspects) -> str:
    """Says how much slower a node may be and not be named: a sentence for where nothing is slow."""
    of = suspected.hosts or tuple(
        sorted({host for pair in suspected.pairs for host in (pair.a, pair.b)})
    )
    smallest = _board(suspected.pairs, of, suspected.case).smallest(
        suspected.most or rounds.MOST_ROUNDS
    )
    if smallest is None:
        return "launches scatter so widely that a node of half the speed might have been missed"
    return f"a node that is {100 * smallest:g}% slower would have been named 99 times in 100"


def open_still(suspected: Suspects) -> str:
    """Which nodes may be slow although they are not named, and what would tell."""
    first = ", ".join(suspected.undecided[:NODES_SHOWN])
    if more := len(suspected.undecided) - NODES_SHOWN:
        first += f" and {more} more" if more > 0 else ""
    slower = f"{wanted(suspected.case):.0%}"
    most = suspected.most or rounds.MOST_ROUNDS
    return f"{first} may be {slower} slower: --rounds {2 * most} may tell, {most} did not"


def unseen(suspected: Suspects) -> tuple[str, ...]:
    """Hosts of which no launch ended well: nobody knows whether they are slow."""
    timed = {
        host for pair in suspected.pairs if pair.time_s is not None for host in (pair.a, pair.b)
    }
    return tuple(host for host in suspected.hosts if host not in timed)


def differences(run: RunRecord) -> Iterator[str]:
    """Lists where a record names other nodes than its pairs do."""
    if run.suspects is not None and run.suspects.most is not None:
        yield from replayed(run.suspects, run.suspects.most)


def replayed(recorded: Suspects, most: int) -> Iterator[str]:
    """Where a round had other pairs than those before it lead to, or other nodes are named."""
    measured, hosts, case = recorded.pairs, recorded.hosts, recorded.case
    again = suspects(measured, hosts, case, most)
    if (again.nodes, again.links) != (recorded.nodes, recorded.links):
        named = ", ".join(words(slow) for slow in again.slow) or "nothing is slow"
        yield f"slow nodes or links are not those that their pairs give: {named}"
    if (again.undecided, again.wanted) != (recorded.undecided, recorded.wanted):
        undecided = ", ".join(again.undecided) or "none"
        yield f"nodes that may be slow are not those that their pairs leave open: {undecided}"
    for number in sorted({pair.round for pair in measured}):
        before = seen([pair for pair in measured if pair.round < number], hosts)
        drawn = rounds.pairs(before, len(hosts), SEED, least(case))
        mine = [(pair.a, pair.b) for pair in measured if pair.round == number]
        if [(hosts[a], hosts[b]) for a, b in drawn] != mine:
            yield f"round {number + 1} of the pairs is not the one that those before lead to"
            return


def words(slow: Slow) -> str:
    """``node 3 is 2.1 % slower with every partner`` or ``the link a - b is ...``."""
    if len(slow.hosts) == 1:
        return f"{slow.hosts[0]} is {slow.slower:.1%} slower, whoever its partner is"
    a, b = slow.hosts
    return f"the link {a} - {b} is {slow.slower:.1%} slower, while both nodes are fast with others"
