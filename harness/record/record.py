"""The record of a run, which every verb reads.

The record and the samples of the ranks contain everything that a verdict depends on (``store``
handles both on disk). ``verify`` recomputes the verdicts from them without torch.
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

#: Version of the record's layout. ``upgrade`` converts older ones.
SCHEMA = 11
#: The first schemas whose verdicts were judged, and whose windows were determined, by the present
#: rules.
JUDGED_SINCE = 6
SETTLED_SINCE = 7
#: The first schema in which background load widens an interval only to one side. Before, any load
#: made a verdict inconclusive.
DIRECTED_SINCE = 8
#: The first schema whose first evaluation requires a larger margin, because half of the launches
#: may be slow.
HALVES_SINCE = 9
#: The first schema in which neither provisional bounds nor simulated hardware decide a run, a
#: verdict shows the interval that was judged, and waiting is attributed within each step.
ASIDE_SINCE = 10


def stand_ins(case: CaseSpec, nodes: Sequence[Machine]) -> frozenset[StandIn]:
    """Return the simulations in a case on these nodes. CPU cores that several ranks share are one
    of them.
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
    """One pass over the arms and one in reverse. ``arms`` are the names in the order of the first
    pass.

    ``together`` is the number of arms that run concurrently in each slot; empty = one after the
    other.
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
        """The (turn, concurrent arms) of every slot in both passes."""
        first = 2 * self.number
        there = self.slots
        back = self.slots[::-1]
        return (*((first, slot) for slot in there), *((first + 1, slot) for slot in back))

    def drawn(self, seed: int) -> Block:
        """Return this block with its slots in the random order of the plan's seed."""
        slots = sorted(tuple(sorted(slot)) for slot in self.slots)
        random.Random(f"{seed}-{self.attempt}-{self.number}").shuffle(slots)
        arms = tuple(name for slot in slots for name in slot)
        sizes = tuple(map(len, slots)) if self.together else ()
        return replace(self, arms=arms, together=sizes)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of one run: everything that ``report``, ``verify``, ``compare`` and the history
    read.

    ``windows`` maps plan hash and arm to the steps and cut that its pilots determined.
    ``admission`` holds the findings about the host before the run, ``launch_sd`` the standard
    deviation between equal pilots. ``out_of_time`` lists plans that the time budget cut,
    ``offered`` all that could have been run. ``nodes`` are the machines of an engine that reaches
    other machines; ``machine`` is then the first of them. ``fabric`` is the speed of data exchange
    before anything is trained. ``recoveries`` are injected faults and what followed. ``blocks`` is
    the order in which arms were launched, ``head`` the hash of the chain's last link ("" = no
    chain). ``device_s`` is the device time of the run: each rank's device from start to end.
    ``setups`` is the software of each setup that a case names. ``suspects`` are the results of
    pairs of nodes. ``facts`` are the properties of each host that should equal those of other hosts
    of its kind: hardware, links, versions, limits. ``played`` are trainings that faults
    interrupted.
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
        """The launches by the hash of their plan, in order."""
        return _grouped(self.launches, lambda launch: launch.plan)

    @cached_property
    def by_case(self) -> Mapping[str, tuple[LaunchRecord, ...]]:
        """The launches by the hash of their case, in order."""
        return _grouped(self.launches, lambda launch: launch.case)

    @cached_property
    def by_slot(self) -> Mapping[str, tuple[LaunchRecord, ...]]:
        """The launches that ran concurrently, by their slot."""
        return _grouped(self.launches, lambda launch: launch.slot)

    @cached_property
    def plan_of(self) -> Mapping[str, Plan]:
        """The plans by their hash; the first one if several are equal."""
        return {plan.hash: plan for plan in reversed(self.plans)}

    @cached_property
    def cases_by_hash(self) -> Mapping[str, tuple[CaseSpec, ...]]:
        """The cases of all arms by their hash, one for each arm."""
        return _grouped(
            (arm.case for plan in self.plans for arm in plan.arms), lambda case: case.hash
        )

    @cached_property
    def references(self) -> tuple[LaunchRecord, ...]:
        """The reference trainings, with which losses are compared."""
        return tuple(launch for launch in self.launches if launch.purpose is Purpose.REFERENCE)

    @cached_property
    def gates(self) -> Mapping[str, LaunchRecord]:
        """The last correctness check of each case, by the hash of the case."""
        return {launch.case: launch for launch in self.launches if launch.purpose is Purpose.GATE}

    def pilots_of(self, cases: Collection[str]) -> list[LaunchRecord]:
        """Return the pilots of these cases, in the order of the record."""
        launches = (launch for case in cases for launch in self.by_case.get(case, ()))
        pilots = [launch for launch in launches if launch.purpose is Purpose.PILOT]
        return sorted(pilots, key=lambda launch: self.places[launch.launch])

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The position of each launch in the record, by its name."""
        return {launch.launch: place for place, launch in enumerate(self.launches)}

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        """The cache of ``once``."""
        return {}

    def once(self, what: Hashable, derive: Callable[[], Derived]) -> Derived:
        """Return a value that is derived from this record, and cache it under this key.

        The parts of a report need the same values.
        """
        if what not in self._derived:
            self._derived[what] = derive()
        derived: Derived = self._derived[what]
        return derived

    def window(self, plan: Plan, launch: LaunchRecord) -> Window:
        """Return the window that a launch was started with.

        A timed launch has the frozen window of its arm; a pilot runs before that window is known.
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
        """Return the simulations in a case of this run. CPU cores that several ranks share are one
        of them.
        """
        return stand_ins(case, self.nodes or (self.machine,) * len(case.nodes))


def _grouped(entries: Iterable[Entry], by: Callable[[Entry], str]) -> dict[str, tuple[Entry, ...]]:
    """Group entries by a string key, each group in the original order."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(by(entry), []).append(entry)
    return {name: tuple(group) for name, group in groups.items()}
