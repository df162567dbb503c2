"""The record of a run: what every verb reads, and nothing else.

All that a verdict rests on is in it and in the ranks' samples (``store`` has both on disk);
``verify`` recomputes it from them without torch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from harness.cases import CaseSpec, Device, Plan, Settings, StandIn, Threshold, Window
from harness.host.admission import Finding
from harness.host.machine import Machine
from harness.record.described import Described
from harness.record.fabric import Row, Suspects
from harness.record.launch import LaunchRecord, Purpose
from harness.record.outcome import Verdict
from harness.record.recovery import FaultedTraining, Trial

Entry = TypeVar("Entry")
Derived = TypeVar("Derived")

SCHEMA = 11
#: The first layouts whose verdicts were judged, and whose windows were settled, by today's rules.
JUDGED_SINCE = 6
SETTLED_SINCE = 7
#: Schema since which load by others has a direction; before, it left whatever it was open.
DIRECTED_SINCE = 8
#: Schema since which the first look asks for more to spare: half of the launches may be slow.
HALVES_SINCE = 9
#: Schema since which neither a provisional bound nor simulated hardware can decide a run, the
#: interval of a verdict is the one that was judged, and waiting is attributed within each step.
ASIDE_SINCE = 10


def stand_ins(case: CaseSpec, nodes: Sequence[Machine]) -> frozenset[StandIn]:
    """The stand-ins for hardware in a case that runs on these nodes: also cores that are shared by
    several ranks.
    """
    if case.device is not Device.CPU or case.stand_in:
        return case.stand_in
    crowded = any(
        ranks * case.devices_per_rank > node.num_cores
        for ranks, node in zip(case.nodes, nodes, strict=False)
    )
    return frozenset({StandIn.OVERSUBSCRIBED}) if crowded else case.stand_in


@dataclass(frozen=True, kw_only=True)
class Block:
    """One pass over arms and one back: ``arms`` in the order of the first, by name.

    ``together`` is how many of them ran at once, slot by slot; empty = one after the other.
    """

    plan: str
    attempt: int
    number: int
    arms: tuple[str, ...]
    together: tuple[int, ...] = ()

    @property
    def slots(self) -> tuple[tuple[str, ...], ...]:
        """The arms of every slot, in the order of the first pass."""
        sizes = self.together or (1,) * len(self.arms)
        ends = list(itertools.accumulate(sizes))
        return tuple(self.arms[end - size : end] for size, end in zip(sizes, ends, strict=True))

    @property
    def passes(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """(turn, arms that run at once) of every slot, there and back."""
        first = 2 * self.number
        there = self.slots
        back = self.slots[::-1]
        return (*((first, slot) for slot in there), *((first + 1, slot) for slot in back))

    def drawn(self, seed: int) -> Block:
        """This block with its slots in the order that a plan's seed draws."""
        slots = sorted(tuple(sorted(slot)) for slot in self.slots)
        random.Random(f"{seed}-{self.attempt}-{self.number}").shuffle(slots)
        arms = tuple(name for slot in slots for name in slot)
        sizes = tuple(map(len, slots)) if self.together else ()
        return replace(self, arms=arms, together=sizes)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run: everything that ``report``, ``verify``, ``compare`` and the history read.

    ``windows`` maps plan hash and arm to the steps and cut that its pilots settled. ``admission``
    is what was found of the host before, ``launch_sd`` the deviation between like pilots.
    ``out_of_time`` lists plans that the time budget cut, ``offered`` all that could have been run.
    ``nodes`` are the machines of an engine that reaches others; ``machine`` is then the first.
    ``fabric`` is how fast the ranks exchange data, before anything is trained; ``recoveries`` are
    faults that were planted, and what came after them. ``blocks`` says in which order arms were
    launched, ``head`` is the hash of the chain's last link ("" = unchained). ``device_s`` is what
    the run held its devices for: each rank's device, from its start to its end. ``setups`` is the
    software of each setup that a case names, ``suspects`` what pairs of nodes came to, ``facts``
    of each host what it has in common with others of its kind: hardware, links, versions, limits,
    ``played`` are trainings that faults interrupted.
    """

    schema: int
    run: str
    started_at: str
    complete: bool
    machine: Machine
    software: Mapping[str, str]
    settings: Settings
    environment: Mapping[str, str]
    plans: tuple[Plan, ...]
    described: Mapping[str, Described]
    launches: tuple[LaunchRecord, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    windows: Mapping[str, Mapping[str, Window]] = field(default_factory=dict)
    admission: tuple[Finding, ...] = ()
    launch_sd: float | None = None
    out_of_time: tuple[str, ...] = ()
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: tuple[Machine, ...] = ()
    fabric: tuple[Row, ...] = ()
    recoveries: tuple[Trial, ...] = ()
    blocks: tuple[Block, ...] = ()
    head: str = ""
    device_s: float = 0.0
    setups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    suspects: Suspects | None = None
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    played: tuple[FaultedTraining, ...] = ()

    @cached_property
    def by_plan(self) -> Mapping[str, tuple[LaunchRecord, ...]]:
        """Launches by the hash of their plan, in their order."""
        return _grouped(self.launches, lambda launch: launch.plan)

    @cached_property
    def by_case(self) -> Mapping[str, tuple[LaunchRecord, ...]]:
        """The contrasts by the hash of their case."""
        return _grouped(self.launches, lambda launch: launch.case)

    @cached_property
    def by_slot(self) -> Mapping[str, tuple[LaunchRecord, ...]]:
        """Those that ran at once, by their slot."""
        return _grouped(self.launches, lambda launch: launch.slot)

    @cached_property
    def plan_of(self) -> Mapping[str, Plan]:
        """Plans by their hash; of equal ones the first."""
        return {plan.hash: plan for plan in reversed(self.plans)}

    @cached_property
    def cases_by_hash(self) -> Mapping[str, tuple[CaseSpec, ...]]:
        """The cases of all arms by their hash: one for each arm that has it."""
        return _grouped(
            (arm.case for plan in self.plans for arm in plan.arms), lambda case: case.hash
        )

    @cached_property
    def verdicts_by_plan(self) -> Mapping[str, tuple[Verdict, ...]]:
        """Verdicts by the hash of their plan, in their order."""
        return _grouped(self.verdicts, lambda verdict: verdict.plan)

    @cached_property
    def verdicts_by_case(self) -> Mapping[str, tuple[Verdict, ...]]:
        """The verdicts by the hash of their case."""
        return _grouped(self.verdicts, lambda v: v.case_hash)

    @cached_property
    def references(self) -> tuple[LaunchRecord, ...]:
        """The harness's own trainings."""
        return tuple(launch for launch in self.launches if launch.purpose is Purpose.REFERENCE)

    @cached_property
    def gates(self) -> Mapping[str, LaunchRecord]:
        """The last gate of each case, by its hash."""
        return {launch.case: launch for launch in self.launches if launch.purpose is Purpose.GATE}

    def pilots_of(self, cases: Collection[str]) -> list[LaunchRecord]:
        """The pilots of these cases, in their order."""
        launches = (launch for case in cases for launch in self.by_case.get(case, ()))
        pilots = [launch for launch in launches if launch.purpose is Purpose.PILOT]
        return sorted(pilots, key=lambda launch: self.places[launch.launch])

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each launch stands in the record, by its name."""
        return {launch.launch: place for place, launch in enumerate(self.launches)}

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    def once(self, what: Hashable, derive: Callable[[], Derived]) -> Derived:
        """A property that follows from this record, by its name: derived when it is first asked
        for, since the parts of a report ask for the same.
        """
        if what not in self._derived:
            self._derived[what] = derive()
        derived: Derived = self._derived[what]
        return derived

    def window(self, plan: Plan, launch: LaunchRecord) -> Window:
        """The window that a launch was asked to run: the frozen window of its arm, a pilot's before
        that.
        """
        if launch.asked is Purpose.PROFILE:
            return plan.profile(self.settings.outline)
        frozen = self.windows.get(plan.hash, {}).get(launch.arm)
        if launch.asked in (Purpose.PROBE, Purpose.ROUND):
            return plan.window
        if launch.asked is not Purpose.TIMED:
            return plan.pilot
        return frozen or plan.window

    def stand_ins(self, case: CaseSpec) -> frozenset[StandIn]:
        """The stand-ins for hardware in a case: also cores that several ranks shared here."""
        return stand_ins(case, self.nodes or (self.machine,) * len(case.nodes))


def _grouped(entries: Iterable[Entry], by: Callable[[Entry], str]) -> dict[str, tuple[Entry, ...]]:
    """Entries by a name of theirs, each group in their order."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(by(entry), []).append(entry)
    return {name: tuple(group) for name, group in groups.items()}
