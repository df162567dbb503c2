"""Forecast: which launches are still to come, and how long they take.

    plans, what is known of their cases -> launches that they want, less those there are -> seconds

``plan``, the line after collection, the live line and its ETA read this one list. What a launch
takes is taken from launches like it where there are any, and from closed forms before.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from harness.analysis import roofline, rungs
from harness.analysis.judging.obstacles import too_large_for_one
from harness.analysis.samples.references import REPLICATES, STREAMED_STEPS
from harness.cases import Arm, CaseSpec, Compiled, Device, Plan, Role, Window
from harness.host.devices import peaks
from harness.host.machine import Machine
from harness.record import Described, LaunchRecord, Purpose

#: FLOP/s of a CPU core in training, the shares of a GPU's peak and of its roofline that training
#: reaches, and that of a link's rate: what is usual, where nothing was measured.
CORE_FLOPS, PEAK_SHARE, ROOFLINE_SHARE, LINK_SHARE = 3e10, 0.4, 0.55, 0.7
#: Seconds to start and end a world: a GPU's rank makes a context, opens NCCL and loads its kernels.
#: Of GPUs a guess: 4 to 8 s are usual.
START_S = {Device.CPU: 0.15, Device.CUDA: 6.0}
#: Seconds in which Inductor compiles the block of a model, and in which a world finds that in its
#: cache: a second of CPU here (``python benchmarks/cost/compiled.py``).
COMPILING_S, COMPILED_S = 30.0, 2.0
#: Seconds to train a gate's twin on one rank, and to write down and read a profile.
GATE_S = 0.3
PROFILE_S = {Device.CPU: 1.0, Device.CUDA: 4.0}
#: A step is not shorter than its own Python.
LEAST_STEP_S = 2e-3
#: Further blocks that a judged plan wants on average: few on a quiet host, more on a noisy one.
FURTHER = 0.5

Slots = Callable[[Plan, Sequence[Arm]], Sequence[Sequence[Arm]]]


@dataclass(frozen=True)
class Coming:
    """Worlds that will run at once, and how long they take, in s."""

    plan: Plan
    purpose: Purpose
    arms: tuple[Arm, ...]
    seconds: float


class LaunchCosts:
    """What launches of these plans take, in s: as those that there are, else as closed forms say.

    ``link_bytes`` is what a rank's slowest link carries, in B/s; 0: nobody knows.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        described: Mapping[str, Described],
        on: Machine,
        launches: Sequence[LaunchRecord] = (),
        link_bytes: float = 0.0,
    ) -> None:
        self._described, self._machine, self._link_bytes = described, on, link_bytes
        self._walls: dict[tuple[str, Purpose], list[float]] = {}
        self._steps: dict[str, list[float]] = {}
        starts: list[float] = []
        for launch in (launch for launch in launches if launch.ranks):
            self._walls.setdefault((launch.case, launch.purpose), []).append(launch.wall_s)
            if launch.steps is not None:
                self._steps.setdefault(launch.case, []).append(launch.steps.mean_s)
                starts.append(launch.wall_s - max(r.stepping_s for r in launch.ranks))
        self._start_s = fmean(starts) if starts else None
        cases = {arm.case.hash: arm.case for plan in plans for arm in plan.arms}
        off = [fmean(s) / self._guess_s(cases[c]) for c, s in self._steps.items() if c in cases]
        self._off = fmean(off) if off else 1.0  # as estimates were so far

    def of(self, case: CaseSpec, purpose: Purpose, window: Window) -> float:
        """One launch."""
        known = self._walls.get((case.hash, purpose))
        if known and purpose is not Purpose.TIMED:
            return fmean(known)
        start = START_S[case.device] if self._start_s is None else self._start_s
        if self._start_s is None and case.compiled is Compiled.INDUCTOR:
            start += COMPILED_S
        if purpose is Purpose.GATE:
            return start + GATE_S * case.world_size
        step = self.step_s(case)
        facts = self._described[case.hash].facts
        if purpose is Purpose.REFERENCE and facts is not None and facts.step_s is not None:
            step = LEAST_STEP_S  # nobody waits for a stand-in there
        more = PROFILE_S[case.device] if purpose is Purpose.PROFILE else 0.0
        steps = window.steps
        if purpose is Purpose.REFERENCE:
            steps = self._trained(case, steps)
        return start + steps * step + more

    def lasting(self, plan: Plan, arm: Arm) -> Window:
        """What a timed launch runs at least, before a pilot has settled it."""
        return plan.protocol.lasting(plan.window, self.step_s(arm.case))

    def _trained(self, case: CaseSpec, steps: int) -> int:
        """Steps of a reference and of its replicates."""
        described = self._described[case.hash]
        wanted = described.reference
        if wanted is None or not wanted.limit:
            return steps
        if too_large_for_one(described, case, self._machine):
            return min(steps, STREAMED_STEPS)
        return steps * (1 + REPLICATES)

    def step_s(self, case: CaseSpec) -> float:
        """One step of a case."""
        known = self._steps.get(case.hash)
        return fmean(known) if known else self._off * self._guess_s(case)

    def _guess_s(self, case: CaseSpec) -> float:
        """A step by its FLOPs or its bytes; a stand-in says itself how long its steps are."""
        answer = self._described[case.hash]
        if answer.facts is None or answer.expected is None:
            return LEAST_STEP_S
        if answer.facts.step_s is not None:
            return answer.facts.step_s
        flops = answer.facts.flops_per_sample * answer.expected.global_batch / case.world_size
        rate = CORE_FLOPS * case.devices_per_rank
        if case.device is Device.CUDA:
            peak = peaks(self._machine.gpu).get(case.dtype, 2e14)
            used = roofline.mfu_of(answer, case, self._machine.gpu)
            rate = peak * (PEAK_SHARE if used is None else ROOFLINE_SHARE * used)
        link = LINK_SHARE * self._link_bytes
        talking_s = max(answer.expected.sent_bytes, default=0.0) / link if link else 0.0
        return max(LEAST_STEP_S, flops / rate, talking_s)


class PlanPhase(NamedTuple):
    """What a plan launches for one purpose: its window, and how often each arm is launched."""

    purpose: Purpose
    window: Window
    times: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is known of a run before it is over: its plans, and what was launched of them.

    ``arms`` maps a plan's hash to the arms that it is measured with, ``windows`` it to those that
    pilots have settled.
    """

    plans: Sequence[Plan]
    arms: Mapping[str, Sequence[Arm]]
    costs: LaunchCosts
    described: Mapping[str, Described]
    slots: Slots
    launches: Sequence[LaunchRecord] = ()
    windows: Mapping[str, Mapping[str, Window]] = field(default_factory=dict)
    timeline: bool = True
    outline: bool = False

    def coming(self) -> Iterator[Coming]:
        """Every launch to come; plans share gates, pilots, references and profiles."""
        have = _have(self.plans, self.launches, self.described)
        compiled = _compiled(self.plans, self.launches)
        for plan in self.plans:
            for phase in self._phases(plan):
                for slot, times in self._slots(plan, phase):
                    if missing := self._missing(plan, phase.purpose, slot, times, have):
                        yield from self._launches(plan, phase, missing, compiled)

    def _phases(self, plan: Plan) -> list[PlanPhase]:
        """A plan's phases, in their order."""
        profiles = int(self.timeline)
        return [
            PlanPhase(Purpose.GATE, plan.window, 1),
            PlanPhase(Purpose.PILOT, plan.pilot, 1),
            PlanPhase(Purpose.REFERENCE, plan.window, 1),
            PlanPhase(Purpose.TIMED, plan.window, 2 * plan.protocol.min_blocks),
            PlanPhase(Purpose.PROFILE, plan.profile(self.outline), profiles),
        ]

    def _slots(self, plan: Plan, phase: PlanPhase) -> Iterator[tuple[Sequence[Arm], int]]:
        """Arms that run at once, and how often they do.

        The first pilot runs twice, against itself; pilots side by side are followed by two probes
        of what neighbours take instead.
        """
        chosen = [arm for arm in self.arms[plan.hash] if _wanted(arm, phase.purpose)]
        if phase.purpose is Purpose.PROFILE:
            profiled = rungs.profiled(plan, len(self.plans))
            chosen = [arm for arm in chosen if arm in profiled]
        for place, slot in enumerate(self.slots(plan, chosen)):
            more = 0
            if phase.purpose is Purpose.PILOT:
                more = 2 if len(slot) > 1 else int(place == 0)
            yield slot, phase.times + more

    def _missing(
        self,
        plan: Plan,
        purpose: Purpose,
        slot: Sequence[Arm],
        times: int,
        have: Counter[object],
    ) -> list[tuple[Arm, int]]:
        """Arms of a slot that were launched less often, and how often they still are; ``have``
        counts them as launched then.
        """
        missing = []
        for arm in slot:
            key = _key(plan, arm.case.hash, purpose, self.described)
            if key is not None and have[key] < times:
                missing.append((arm, times - have[key]))
                have[key] = times
        return missing

    def _launches(
        self,
        plan: Plan,
        phase: PlanPhase,
        missing: Sequence[tuple[Arm, int]],
        compiled: set[object],
    ) -> Iterator[Coming]:
        """Launches of arms that run at once, and the further blocks that they will want."""
        arms = tuple(arm for arm, _ in missing)
        took_s = max(
            self.costs.of(arm.case, phase.purpose, self._window(plan, phase, arm)) for arm in arms
        )
        took_s += _compiling_s([arm.case for arm in arms], compiled)
        launch = Coming(plan, phase.purpose, arms, took_s)
        yield from [launch] * max(count for _, count in missing)
        if phase.purpose is Purpose.TIMED and plan.contrasts and not self._has_blocks(plan, phase):
            yield replace(launch, seconds=2 * FURTHER * took_s)

    def _window(self, plan: Plan, phase: PlanPhase, arm: Arm) -> Window:
        """As pilots have settled it, for what has to last."""
        if phase.purpose not in (Purpose.TIMED, Purpose.REFERENCE):
            return phase.window
        settled = self.windows.get(plan.hash, {})
        return settled.get(arm.name) or self.costs.lasting(plan, arm)

    def _has_blocks(self, plan: Plan, phase: PlanPhase) -> bool:
        """Whether a plan has its first blocks."""
        begun = sum(x.plan == plan.hash and x.purpose is Purpose.TIMED for x in self.launches)
        return begun >= phase.times * len(self.arms[plan.hash])


def _compiled(plans: Sequence[Plan], launches: Sequence[LaunchRecord]) -> set[object]:
    """What earlier launches have left in Inductor's cache."""
    launched = {launch.case for launch in launches}
    arms = (arm for plan in plans for arm in plan.arms)
    return {_graph(arm.case) for arm in arms if arm.case.hash in launched}


def _compiling_s(cases: Sequence[CaseSpec], compiled: set[object]) -> float:
    """How long worlds that start at once compile what none had before, s; the set grows."""
    graphs = {_graph(case) for case in cases} - compiled - {None}
    compiled |= graphs
    return COMPILING_S if graphs else 0.0


def _graph(case: CaseSpec) -> object:
    """What Inductor compiles once for all launches of this run; None: nothing."""
    if case.compiled is not Compiled.INDUCTOR:
        return None
    return case.model, case.size, case.precision, case.seq_len, case.checkpoint, case.selective


def _have(
    plans: Sequence[Plan], launches: Sequence[LaunchRecord], described: Mapping[str, Described]
) -> Counter[object]:
    """How often there is what; probes stand beside the pilots of their case."""
    by_hash = {plan.hash: plan for plan in plans}
    slots = set[tuple[str, str]]()
    have: Counter[object] = Counter()
    for launch in launches:
        if launch.slot and (launch.slot, launch.case) in slots:
            continue  # a baseline at several places at once
        slots.add((launch.slot, launch.case))
        purpose = Purpose.PILOT if launch.purpose is Purpose.PROBE else launch.purpose
        have[_key(by_hash.get(launch.plan), launch.case, purpose, described)] += 1
    return have


def _wanted(arm: Arm, purpose: Purpose) -> bool:
    """Whether an arm is launched for this at all."""
    if arm.role is Role.CONTROL:
        return purpose is Purpose.GATE
    return arm.role is not Role.ABLATION or purpose in (Purpose.PILOT, Purpose.TIMED)


def _key(
    plan: Plan | None, case: str, purpose: Purpose, described: Mapping[str, Described]
) -> object:
    """Launches of one key stand for each other; None: nobody needs one."""
    if plan is None:
        return purpose
    if purpose is Purpose.PILOT:
        return purpose, case, plan.pilot
    if purpose is Purpose.REFERENCE:
        wanted = described[case].reference
        return None if wanted is None else (purpose, wanted.key)
    if purpose is Purpose.TIMED:
        return purpose, case, plan.hash
    return purpose, case
