"""The record of a run, which every command reads.

The record and the samples of the ranks contain everything that a verdict depends on. ``store``
reads and writes both. ``verify`` recomputes the verdicts from them without torch.
"""

from __future__ import annotations

import itertools
import random
import shlex
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from harness.base.errors import Exit
from harness.cases import CaseSpec, Device, Plan, Settings, StandIn, Threshold, Window
from harness.host.admission import Finding
from harness.host.machine import Machine
from harness.record.described import Described
from harness.record.fabric import Row, Suspects
from harness.record.launch import LaunchRecord, Purpose
from harness.record.outcome import Status, Verdict, exit_status
from harness.record.recovery import FaultedTraining, Trial

Entry = TypeVar("Entry")
Derived = TypeVar("Derived")

#: Version of the record's layout. ``upgrade`` converts older ones.
SCHEMA = 13
#: The first schema whose verdicts were judged by the present rules.
JUDGED_SINCE = 6
#: The first schema whose windows (numbers of steps and of warm-up steps) were chosen by the present
#: rules.
SETTLED_SINCE = 7
#: The first schema in which background load widens an interval only to one side. In older schemas,
#: any background load made a verdict inconclusive.
DIRECTED_SINCE = 8
#: The first schema in which the first evaluation of a verdict requires a larger margin. After few
#: pairs, half of the launches may be slow.
HALVES_SINCE = 9
#: The first schema in which neither provisional bounds nor simulated hardware decide a run. Since
#: this schema, a verdict shows the interval that was judged, and waiting is attributed within each
#: step.
ASIDE_SINCE = 10
#: The first schema in which correlation between pairs widens the interval that is judged.
CORRELATED_SINCE = 12
#: The first schema in which background load leaves a PASS of values without a baseline, such as
#: recovery times. In older schemas, such load made every verdict on them inconclusive.
WORSENED_SINCE = 13


def stand_ins(case: CaseSpec, nodes: Sequence[Machine]) -> frozenset[StandIn]:
    """Return which parts of a case are simulated on these nodes.

    ``OVERSUBSCRIBED`` is added if the ranks of a node need more CPU cores than the node has.
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
    """Two passes over the arms of a plan, the second in reverse order.

    A slot is a group of arms whose launches run concurrently. ``arms`` are the names of all arms in
    the order of the first pass. ``together`` is the number of arms in each slot; it is empty if
    every slot has one arm.
    """

    plan: str
    attempt: int
    number: int
    arms: tuple[str, ...]
    together: tuple[int, ...] = ()

    @property
    def slots(self) -> tuple[tuple[str, ...], ...]:
        """The names of the arms in each slot, with the slots in the order of the first pass."""
        sizes = self.together or (1,) * len(self.arms)
        ends = list(itertools.accumulate(sizes))
        return tuple(self.arms[end - size : end] for size, end in zip(sizes, ends, strict=True))

    @property
    def passes(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The (turn, arms) of every slot, for both passes. A turn is the number of a pass."""
        first = 2 * self.number
        there = self.slots
        back = self.slots[::-1]
        return (*((first, slot) for slot in there), *((first + 1, slot) for slot in back))

    def drawn(self, seed: int) -> Block:
        """Return this block with its slots in a random order, which the seed determines."""
        slots = sorted(tuple(sorted(slot)) for slot in self.slots)
        random.Random(f"{seed}-{self.attempt}-{self.number}").shuffle(slots)
        arms = tuple(name for slot in slots for name in slot)
        sizes = tuple(map(len, slots)) if self.together else ()
        return replace(self, arms=arms, together=sizes)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record of one run: everything that ``report``, ``verify``, ``compare`` and the history
    read.

    ``windows`` maps the hash of a plan and the name of an arm to the number of steps and of warm-up
    steps that the calibration launches (pilots) determined. ``admission`` lists the findings about
    the host before the run. ``launch_sd`` is the relative standard deviation between calibration
    launches of the same arm. ``out_of_time`` lists the hashes of plans that were not completed
    within the time budget. ``offered`` lists the available strategies, models and compressors, used
    or not.

    ``nodes`` are the machines of an engine that reaches other machines; ``machine`` is then the
    first of them. ``fabric`` are the measured rates of data exchange without training. ``suspects``
    are measurements on pairs of nodes that identify slow nodes and links. ``recoveries`` are
    injected faults, each with its recovery. ``played`` are trainings that faults interrupted.
    ``blocks`` gives the order in which arms were launched. ``head`` is the hash of the chain's last
    link; it is empty if there is no chain.

    ``elapsed_s`` is the duration of the run in seconds, and ``device_s`` is this duration times the
    number of devices. ``setups`` is the software of each setup that a case names. ``facts`` are the
    properties of each host that should be equal on all hosts of its kind: hardware, links,
    versions, limits.
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

    @property
    def measured_alone(self) -> str:
        """The thing measured by a run that was to time no case, or an empty string."""
        if self.plans:
            return ""
        if self.recoveries:
            return "recovery from faults"
        if self.played:
            return "training under faults"
        if self.suspects is not None and any(pair.time_s for pair in self.suspects.pairs):
            return "the speed of pairs of nodes"
        return "the network" if any(row.time_s for row in self.fabric) else ""

    @property
    def exit_status(self) -> Exit:
        """The exit status of the run's verdicts, by the settings with which it was measured.

        A threshold whose case was skipped asks for a verdict.
        """
        counted = [verdict.counts for verdict in self.verdicts]
        skipped = (v for v in self.verdicts if v.status is Status.SKIP)
        asked = any(verdict.rule is not None for verdict in skipped)
        if self.measured_alone:
            counted.append(Status.RECORDED)
        return exit_status(
            counted,
            inconclusive_fails=not self.settings.lenient,
            require_verdict=self.settings.require_verdict or asked,
        )

    def continuation(self, folder: Path) -> str:
        """Return the command that continues the interrupted run in ``folder``.

        Only plans can be continued. Other measurements are made again by the command that the user
        had typed.
        """
        again = shlex.join(self.settings.argv)
        return f"scaleproof run --resume {folder}" if self.plans else again

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
        """The launches by the name of their slot; launches of one slot ran concurrently."""
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
        """Return the calibration launches (pilots) of these cases, in the order of the record."""
        launches = (launch for case in cases for launch in self.by_case.get(case, ()))
        pilots = [launch for launch in launches if launch.purpose is Purpose.PILOT]
        return sorted(pilots, key=lambda launch: self.places[launch.launch])

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The position of each launch in the record, by its name."""
        return {launch.launch: place for place, launch in enumerate(self.launches)}

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        """The cache of ``once``: each derived value by its key."""
        return {}

    def once(self, what: Hashable, derive: Callable[[], Derived]) -> Derived:
        """Return a value that is derived from this record, and cache it under this key.

        The cache exists because several parts of a report need the same values.
        """
        if what not in self._derived:
            self._derived[what] = derive()
        derived: Derived = self._derived[what]
        return derived

    def window(self, plan: Plan, launch: LaunchRecord) -> Window:
        """Return the window (numbers of steps and of warm-up steps) that a launch was started with.

        A timed launch has the window that the pilots determined for its arm. A pilot has the window
        that its plan gives to pilots.
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
        """Return which parts of a case are simulated on the nodes of this run."""
        return stand_ins(case, self.nodes or (self.machine,) * len(case.nodes))


def _grouped(entries: Iterable[Entry], by: Callable[[Entry], str]) -> dict[str, tuple[Entry, ...]]:
    """Group entries by a string key. Each group keeps the original order."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(by(entry), []).append(entry)
    return {name: tuple(group) for name, group in groups.items()}
