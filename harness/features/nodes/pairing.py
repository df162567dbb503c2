"""Measure pairs of nodes in rounds, and find the slow nodes and links."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.analysis.packing import Placement
from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.cases import CaseSpec, Plan, Site
from harness.cases.recipes import paired
from harness.features.nodes import rounds
from harness.features.nodes.rounds import Board, TimedPair
from harness.measure import together
from harness.measure.measurer import Measurer, moment
from harness.measure.order import Order
from harness.measure.progress import Moment
from harness.measure.session import Session
from harness.record import Purpose, RunRecord
from harness.record.fabric import Paired, Slow, Suspects

#: Field of the record that an audit recomputes; ``heads.modules`` finds this module by the name.
AUDIT = "suspects"
#: Smallest relative slowness for which a node or link is named: in the step time of a training
#: (STEP) and in the time of an all-reduce (LINK).
STEP = rounds.LEAST_SLOWER
LINK = 0.1
#: Largest number of nodes that a sentence names.
NODES_SHOWN = 8
#: Seed by which the partners of a run are drawn.
SEED = 0


def hosts(names: Sequence[str], num_nodes: int) -> tuple[str, ...]:
    """Return a name for each node.

    This is its host name, or its number if the nodes are emulated on one machine.
    """
    if len({*names}) == num_nodes:
        return tuple(names)
    return tuple(f"node {i}" for i in range(num_nodes))


def least(case: str) -> float:
    """Return the smallest relative slowness with which a node is reported as slow.

    ``case`` is empty if the pairs all-reduce.
    """
    return STEP if case else LINK


def wanted(case: str) -> float:
    """Return the relative slowness that must be found.

    A node is measured until it is reported as slow, or until so large a slowness is excluded.
    """
    return rounds.WANTED * least(case)


def suspects_of(pairs: Sequence[Paired], of: Sequence[str], case: str, most: int) -> Suspects:
    """Return the slow nodes and links among these hosts according to all measured pairs.

    ``most`` is the largest number of rounds.
    """
    conclusions = rounds.conclude(seen_in(pairs, of), len(of), least(case))
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
    """Return the conclusions from these pairs."""
    return rounds.board(tuple(seen_in(pairs, of)), len(of), least(case), wanted(case))


def seen_in(pairs: Sequence[Paired], of: Sequence[str]) -> list[TimedPair]:
    """Return the pairs that were timed, with numbers in place of host names."""
    number = {host: i for i, host in enumerate(of)}
    return [
        TimedPair(number[pair.a], number[pair.b], pair.round, pair.time_s)
        for pair in pairs
        if pair.time_s is not None
    ]


def hidden(suspected: Suspects) -> str:
    """Return a sentence on the smallest slowness that this run would have found.

    It is printed if no node and no link is slow.
    """
    of = suspected.hosts or tuple(
        sorted({host for pair in suspected.pairs for host in (pair.a, pair.b)})
    )
    smallest = _board(suspected.pairs, of, suspected.case).smallest(
        suspected.most or rounds.MOST_ROUNDS
    )
    if smallest is None:
        return "launches scatter so widely that even a node with half the usual speed may be missed"
    return f"a node that is {100 * smallest:g}% slower would have been named in 99 of 100 runs"


def open_still(suspected: Suspects) -> str:
    """Return a sentence that names the nodes that may be slow, and how to decide it."""
    first = ", ".join(suspected.undecided[:NODES_SHOWN])
    if more := len(suspected.undecided) - NODES_SHOWN:
        first += f" and {more} more" if more > 0 else ""
    slower = f"{wanted(suspected.case):.0%}"
    most = suspected.most or rounds.MOST_ROUNDS
    return (
        f"{first} may be {slower} slower: {most} rounds did not decide this,"
        f" try --rounds {2 * most}"
    )


def unseen(suspected: Suspects) -> tuple[str, ...]:
    """Return the hosts without a successful launch. It is unknown whether they are slow."""
    timed = {
        host for pair in suspected.pairs if pair.time_s is not None for host in (pair.a, pair.b)
    }
    return tuple(host for host in suspected.hosts if host not in timed)


def differences(run: RunRecord) -> Iterator[str]:
    """Yield the differences between the recorded slow nodes and the result of recorded pairs."""
    if run.suspects is not None and run.suspects.most is not None:
        yield from replayed(run.suspects, run.suspects.most)


def replayed(recorded: Suspects, most: int) -> Iterator[str]:
    """Yield a sentence for each part of a record that does not follow from its measured pairs.

    These parts are the slow nodes and links, the undecided nodes, and the choice of the pairs of
    each round.
    """
    measured, hosts, case = recorded.pairs, recorded.hosts, recorded.case
    again = suspects_of(measured, hosts, case, most)
    if (again.nodes, again.links) != (recorded.nodes, recorded.links):
        named = ", ".join(words(slow) for slow in again.slow) or "nothing is slow"
        yield f"the recorded slow nodes or links do not follow from the pairs, which show {named}"
    if (again.undecided, again.wanted) != (recorded.undecided, recorded.wanted):
        undecided = ", ".join(again.undecided) or "none"
        yield f"the recorded undecided nodes do not follow from the pairs, which show {undecided}"
    for number in sorted({pair.round for pair in measured}):
        before = seen_in([pair for pair in measured if pair.round < number], hosts)
        drawn = rounds.pairs(before, len(hosts), SEED, least(case))
        mine = [(pair.a, pair.b) for pair in measured if pair.round == number]
        if [(hosts[a], hosts[b]) for a, b in drawn] != mine:
            yield f"round {number + 1} of the pairs does not follow from the earlier rounds"
            return


def words(slow: Slow) -> str:
    """Return ``node 3 is 2.1 % slower with every partner`` or ``the link a - b is ...``."""
    if len(slow.hosts) == 1:
        return f"{slow.hosts[0]} is {slow.slower:.1%} slower with every partner"
    a, b = slow.hosts
    return (
        f"the link {a} - {b} is {slow.slower:.1%} slower, although both nodes are fast with other"
        " partners"
    )


#: A function of (number of the round, pairs of nodes) that returns the result of each pair. The
#: time of a failed pair is None.
Times = Callable[[int, Sequence[tuple[int, int]]], list[Paired]]


class Pairer:
    """Measures up to ``most`` rounds of pairs over the nodes of a site."""

    def __init__(self, session: Session, site: Site, most: int) -> None:
        self._session = session
        self._site = site
        self._most = most
        session.ready()
        self._hosts = hosts([node.host for node in session.run.nodes], len(site.nodes))

    def train(self, case: CaseSpec) -> Suspects:
        """Measure pairs of nodes that train a case.

        Raise SpecError if two nodes do not train the case correctly.
        """
        session = self._session
        plan = paired(case)
        Measurer(session).measure([plan])
        gate = session.run.bare().gates.get(case.hash)
        if gate is None or not gate.usable:
            described = session.run.described[case.hash]
            reason = gate.cause.message if gate is not None and gate.cause else ""
            raise SpecError(
                reason or described.refused or "its correctness check failed",
                where=case.id,
                expected="a case that two nodes can train",
                fix="scaleproof run list",
            )
        at_once = together.side_by_side(session, plan)
        return self._rounds(case.id, lambda number, pairs: self._step(plan, number, pairs, at_once))

    def reduce(self, knobs: Mapping[str, Json]) -> Suspects:
        """Measure pairs that all-reduce the largest payload."""
        return self._rounds("", lambda number, pairs: self._reduced(knobs, number, pairs))

    def _rounds(self, case: str, measure: Times) -> Suspects:
        """Measure rounds until every node is decided, or ``most`` rounds are done.

        The slow nodes and links are stored in the run.
        """
        done = list[Paired]()
        run = self._session.run
        suspects = suspects_of(done, self._hosts, case, self._most)
        for number in range(self._most):
            seen = seen_in(done, self._hosts)
            chosen = rounds.pairs(seen, len(self._hosts), SEED, least(case))
            if not chosen:
                break
            done += measure(number, chosen)
            suspects = suspects_of(done, self._hosts, case, self._most)
        run.set_suspects(suspects)
        return suspects

    def _step(
        self, plan: Plan, number: int, pairs: Sequence[tuple[int, int]], at_once: bool
    ) -> list[Paired]:
        """Train once on each pair, and return its mean step time in seconds."""
        (arm,) = plan.arms
        slots = _slots(pairs, at_once)
        paired = list[Paired]()
        for slot in slots:
            orders = [
                Order(
                    plan=plan,
                    arm=arm,
                    purpose=Purpose.ROUND,
                    window=plan.window,
                    turn=number,
                    seat=Placement(pair, (0, 0) if len(slot) > 1 else ()),
                )
                for pair in slot
            ]
            now = moment(self._session, orders[0], {}, [])
            now = replace(now, launch=number + 1, num_launches=self._most)
            for pair, launch in zip(slot, self._session.launch(orders, now), strict=True):
                took_s = None
                if launch.usable and launch.throughput and launch.steps is not None:
                    took_s = launch.consumed / launch.throughput / launch.steps.count
                else:
                    reason = launch.wrong[0] if launch.wrong else ""
                    reason = launch.cause.message if launch.cause is not None else reason
                    self._note(pair, reason)
                paired.append(self._paired(pair, number, took_s))
        return paired

    def _reduced(
        self, knobs: Mapping[str, Json], number: int, pairs: Sequence[tuple[int, int]]
    ) -> list[Paired]:
        """All-reduce once on each pair, and return its time in seconds."""
        session = self._session
        paired = list[Paired]()
        session.run.seal()
        for slot in _slots(pairs, not self._site.emulated):
            cases = [
                self._site.fabric(tuple(self._site.nodes[host] for host in pair), knobs)
                for pair in slot
            ]
            session.progress.show(
                Moment(
                    plan=f"{len(pairs)} pairs",
                    number=1,
                    num_plans=1,
                    arm="",
                    purpose=Purpose.ROUND,
                    launch=number + 1,
                    num_launches=self._most,
                    step=0,
                    num_steps=0,
                    elapsed_s=session.run.elapsed_s,
                    left_s=None,
                    last="",
                )
            )
            done = session.bench.sweep_together(cases, session.run.folder, slot, "all_reduce")
            session.enter_broken()
            for pair, rows in zip(slot, done, strict=True):
                if isinstance(rows, LaunchError):
                    self._note(pair, rows.what)
                    paired.append(self._paired(pair, number, None))
                elif not rows[0].right:
                    self._note(pair, rows[0].refused or "a rank got a wrong result")
                    paired.append(self._paired(pair, number, None))
                else:
                    (row,) = rows
                    paired.append(replace(self._paired(pair, number, row.time_s), bps=row.bus_bps))
        return paired

    def _paired(self, pair: tuple[int, int], number: int, took_s: float | None) -> Paired:
        """Return the result of a pair, with the names of its hosts."""
        a, b = (self._hosts[node] for node in pair)
        return Paired(a=a, b=b, round=number, time_s=took_s)

    def _note(self, pair: tuple[int, int], why: str) -> None:
        """Add the reason why a pair failed to the notes of the run."""
        a, b = (self._hosts[node] for node in pair)
        self._session.run.notes.append(f"{a} - {b}: {why}")
        self._session.progress.note(self._session.run.notes[-1])


def _slots(pairs: Sequence[tuple[int, int]], at_once: bool) -> list[list[tuple[int, int]]]:
    """Return the pairs in groups that run concurrently.

    The pairs of a group have no node in common. Every group has one pair if ``at_once`` is false.
    """
    slots: list[list[tuple[int, int]]] = []
    for pair in pairs:
        fits = (s for s in slots if at_once and not {n for other in s for n in other} & {*pair})
        slot = next(fits, None)
        if slot is None:
            slots.append([pair])
        else:
            slot.append(pair)
    return slots
