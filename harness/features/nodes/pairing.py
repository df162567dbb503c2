"""The Pairer: pairs of nodes in rounds, until slow nodes and slow links are named.

    the next round's pairs -> launches, at once where none disturbs another -> how long each took
    -> what that says of nodes and links -> the next round's pairs

With a case, a pair trains it, and its launches are in the record; else it all-reduces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from harness.analysis.packing import Placement
from harness.base.documents import Json
from harness.base.errors import LaunchError, SpecError
from harness.cases import CaseSpec, Plan, Site
from harness.cases.recipes import paired
from harness.features.nodes import rounds, told
from harness.measure import together
from harness.measure.measurer import Measurer, moment
from harness.measure.order import Order
from harness.measure.progress import Moment
from harness.measure.session import Session
from harness.record import Purpose
from harness.record.fabric import Paired, Suspects

#: (Number of the round, pairs of nodes) -> what each of them took; None of one that failed.
Times = Callable[[int, Sequence[tuple[int, int]]], list[Paired]]


class Pairer:
    """Measures up to ``most`` rounds over the nodes of a site."""

    def __init__(self, session: Session, site: Site, most: int) -> None:
        self._session = session
        self._site = site
        self._most = most
        session.ready()
        self._hosts = told.hosts([node.host for node in session.run.nodes], len(site.nodes))

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
                fix="scaleproof list",
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
        suspects = told.suspects(done, self._hosts, case, self._most)
        for number in range(self._most):
            seen = told.seen(done, self._hosts)
            chosen = rounds.pairs(seen, len(self._hosts), told.SEED, told.least(case))
            if not chosen:
                break
            done += measure(number, chosen)
            suspects = told.suspects(done, self._hosts, case, self._most)
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
