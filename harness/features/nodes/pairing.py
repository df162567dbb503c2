"""Pairs of nodes in rounds, and the slow nodes and links that they show."""

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


def suspects_of(pairs: Sequence[Paired], of: Sequence[str], case: str, most: int) -> Suspects:
    """Names the slow ones of these hosts, by all that was measured of them in ``most`` rounds at
    most.
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
    return rounds.board(tuple(seen_in(pairs, of)), len(of), least(case), wanted(case))


def seen_in(pairs: Sequence[Paired], of: Sequence[str]) -> list[TimedPair]:
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
    again = suspects_of(measured, hosts, case, most)
    if (again.nodes, again.links) != (recorded.nodes, recorded.links):
        named = ", ".join(words(slow) for slow in again.slow) or "nothing is slow"
        yield f"slow nodes or links are not those that their pairs give: {named}"
    if (again.undecided, again.wanted) != (recorded.undecided, recorded.wanted):
        undecided = ", ".join(again.undecided) or "none"
        yield f"nodes that may be slow are not those that their pairs leave open: {undecided}"
    for number in sorted({pair.round for pair in measured}):
        before = seen_in([pair for pair in measured if pair.round < number], hosts)
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


#: (Number of the round, pairs of nodes) -> what each of them took; None of one that failed.
Times = Callable[[int, Sequence[tuple[int, int]]], list[Paired]]


class Pairer:
    """Measures up to ``most`` rounds over the nodes of a site."""

    def __init__(self, session: Session, site: Site, most: int) -> None:
        self._session = session
        self._site = site
        self._most = most
        session.ready()
        self._hosts = hosts([node.host for node in session.run.nodes], len(site.nodes))

    def train(self, case: CaseSpec) -> Suspects:
        """Pairs train a case of two nodes; SpecError if it does not train right."""
        session = self._session
        plan = paired(case)
        Measurer(session).measure([plan])
        gate = session.run.bare().gates.get(case.hash)
        if gate is None or not gate.usable:
            described = session.run.described[case.hash]
            reason = gate.cause.message if gate is not None and gate.cause else ""
            raise SpecError(
                reason or described.unsupported or described.error or "its gate does not hold",
                where=case.id,
                expected="a case that two nodes can train",
                fix="scaleproof run list",
            )
        at_once = together.side_by_side(session, plan)
        return self._rounds(case.id, lambda number, pairs: self._step(plan, number, pairs, at_once))

    def reduce(self, knobs: Mapping[str, Json]) -> Suspects:
        """Pairs all-reduce the largest payload."""
        return self._rounds("", lambda number, pairs: self._reduced(knobs, number, pairs))

    def _rounds(self, case: str, measure: Times) -> Suspects:
        """Rounds until nothing is left to find; what broke in the middle leaves those before."""
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
        """One training of each pair: the time of a mean step."""
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
        """One all-reduce of each pair."""
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
        a, b = (self._hosts[node] for node in pair)
        return Paired(a=a, b=b, round=number, time_s=took_s)

    def _note(self, pair: tuple[int, int], why: str) -> None:
        a, b = (self._hosts[node] for node in pair)
        self._session.run.notes.append(f"{a} - {b}: {why}")
        self._session.progress.note(self._session.run.notes[-1])


def _slots(pairs: Sequence[tuple[int, int]], at_once: bool) -> list[list[tuple[int, int]]]:
    """Pairs that run at once: those that share no node, or one by one."""
    slots: list[list[tuple[int, int]]] = []
    for pair in pairs:
        fits = (s for s in slots if at_once and not {n for other in s for n in other} & {*pair})
        slot = next(fits, None)
        if slot is None:
            slots.append([pair])
        else:
            slot.append(pair)
    return slots
