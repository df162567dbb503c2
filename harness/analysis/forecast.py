"""The forecast of a run: the launches that are still to come, and the time they will take.

    plans and descriptions of cases -> needed launches minus finished launches -> seconds

All outputs with a predicted duration use this forecast: ``plan``, the line after collection, and
the progress line with its ETA. The time of a launch is estimated from launches of the same kind if
there are any, else from closed forms of FLOPs and bytes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from statistics import fmean

from harness.analysis import roofline, rungs
from harness.analysis.judging import contrast_data
from harness.analysis.judging.blockers import too_large_for_one
from harness.analysis.samples import references
from harness.analysis.samples.references import STREAMED_STEPS
from harness.cases import Arm, CaseSpec, Compiled, Device, Plan, Role, Threshold, Window
from harness.host.devices import peaks
from harness.host.machine import Machine
from harness.record import Described, LaunchRecord, Purpose
from harness.record.fabric import OPERATIONS

#: Usual FLOP/s of a CPU core in training, for cases that were not measured.
CORE_FLOPS = 3e10
#: Share of a GPU's peak FLOP/s that training usually reaches.
PEAK_SHARE = 0.4
#: Share of the speed by a GPU's roofline that training usually reaches.
ROOFLINE_SHARE = 0.55
#: Share of a link's rate that collectives usually reach.
LINK_SHARE = 0.7
#: Seconds to start and end a world whose ranks are forks of a process that has imported torch. On
#: an H200 a rank creates a context and loads kernels in 1.5 to 2.7 s.
START_S = {Device.CPU: 0.15, Device.CUDA: 2.5}
#: Seconds that NCCL takes to open its channels, without loading kernels. The value was measured on
#: 8 B200 (https://github.com/NVIDIA/nccl/issues/1646) and is a guess for other machines.
NCCL_S = 2.6
#: Seconds that a world takes to load its compiled blocks from Inductor's cache, on an H200.
COMPILED_S = 4.2
#: Further seconds to compile one graph that is not in this cache, on an H200.
COMPILING_S = 10.5
#: Seconds that a correctness check (gate) takes for each rank, to train a small twin of the case.
GATE_S = 0.3
#: Seconds to write and read a profile.
PROFILE_S = {Device.CPU: 1.0, Device.CUDA: 4.0}
#: Seconds that a sweep of the fabric takes to time its collectives. It takes a tenth of a second
#: for each operation and payload, at least three iterations of the largest payload, and the setup.
SWEEP_S = 9.0
#: Shortest time of a step in seconds, which is the time of its Python code.
LEAST_STEP_S = 2e-3
#: Average number of blocks that a judged plan needs in addition to its planned blocks
#: (``min_blocks``). On a noisy host, a plan needs more blocks. On an H200 the interval after four
#: pairs was 0.4 %, and bounds for GPUs lie at least 5 % below the values of healthy machines.
FURTHER = {Device.CPU: 0.5, Device.CUDA: 0.1}

Slots = Callable[[Plan, Sequence[Arm]], Sequence[Sequence[Arm]]]
#: The purpose of launches, the arms that run concurrently, and the number of times that these arms
#: are launched.
Launches = tuple[Purpose, Sequence[Arm], int]


@dataclass(frozen=True)
class PendingLaunches:
    """Worlds that will run concurrently; ``seconds`` is the predicted time of the launch."""

    plan: Plan
    purpose: Purpose
    arms: tuple[Arm, ...]
    seconds: float


class LaunchCosts:
    """Predicts the times of launches of these plans, in s.

    Times come from measured launches if there are any, else from closed forms of FLOPs and bytes.
    ``link_bytes`` is the rate of a rank's slowest link in B/s, or 0 if it is unknown.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        described: Mapping[str, Described],
        on: Machine,
        launches: Sequence[LaunchRecord] = (),
        link_bytes: float = 0.0,
    ) -> None:
        self._described = described
        self._machine = on
        self._link_bytes = link_bytes
        self._walls: dict[tuple[str, Purpose], list[float]] = {}
        self._steps: dict[str, list[float]] = {}
        starts: list[float] = []
        for x in (launch for launch in launches if launch.ranks):
            self._walls.setdefault((x.case, x.purpose), []).append(x.wall_s)
            if x.steps is not None:
                self._steps.setdefault(x.case, []).append(x.steps.mean_s)
                starts.append(x.wall_s - max(rank.stepping_s for rank in x.ranks))
        self._start_s = fmean(starts) if starts else None
        cases = {arm.case.hash: arm.case for plan in plans for arm in plan.arms}
        off = [fmean(s) / self._guess_s(cases[c]) for c, s in self._steps.items() if c in cases]
        self._off = fmean(off) if off else 1.0  # mean ratio of measured to estimated step times

    def of(self, case: CaseSpec, purpose: Purpose, window: Window) -> float:
        """Return the seconds of one launch of a case for this purpose."""
        known = self._walls.get((case.hash, purpose))
        if known and purpose is not Purpose.TIMED:
            return fmean(known)
        start = _start_s(case) if self._start_s is None else self._start_s
        if purpose is Purpose.PROFILE and not case.script:
            start = 0.0  # profiled steps follow the steps of a timed launch in the same processes
        if purpose is Purpose.GATE:
            return start + GATE_S * case.world_size
        step = self.step_s(case)
        facts = self._described[case.hash].facts
        if purpose is Purpose.REFERENCE and facts is not None and facts.step_s is not None:
            step = LEAST_STEP_S  # a reference does not wait for simulated compute
        more = PROFILE_S[case.device] if purpose is Purpose.PROFILE else 0.0
        steps = window.steps
        if purpose is Purpose.REFERENCE:
            steps = self._trained(case, steps)
        return start + steps * step + more

    def lasting(self, plan: Plan, arm: Arm) -> Window:
        """Return the numbers of steps of a timed launch whose pilot has not run yet.

        The protocol states the shortest duration of a launch.
        """
        return plan.protocol.lasting(plan.window, self.step_s(arm.case))

    def streams(self, case: CaseSpec) -> bool:
        """Return whether the reference training of a case is too large for one device."""
        described = self._described[case.hash]
        wanted = described.reference is not None
        return wanted and too_large_for_one(described, case, self._machine)

    def reference_world(self, case: CaseSpec) -> CaseSpec:
        """Return the world in which the reference of a case is trained.

        Return the case itself if it has no reference.
        """
        described = self._described[case.hash]
        if described.reference is None:
            return case
        return references.world(case, described, self.streams(case))

    def _trained(self, case: CaseSpec, steps: int) -> int:
        """Return the number of steps of a reference.

        Replicates are not counted, because they are trained only if a launch needs them.
        """
        described = self._described[case.hash]
        wanted = described.reference
        if wanted is None or not wanted.limit:
            return steps
        if too_large_for_one(described, case, self._machine):
            return min(steps, STREAMED_STEPS)
        return steps

    def step_s(self, case: CaseSpec) -> float:
        """Return the seconds of one step of a case."""
        known = self._steps.get(case.hash)
        return fmean(known) if known else self._off * self._guess_s(case)

    def _guess_s(self, case: CaseSpec) -> float:
        """Estimate the seconds of a step from its FLOPs and bytes.

        Simulated compute states the length of its steps.
        """
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


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The plans of a run and its finished launches, from which the coming launches follow.

    ``arms`` maps a plan's hash to the arms that the run measures. ``windows`` maps a plan's hash to
    the numbers of steps that follow from pilots, by arm. ``link_bytes`` is the rate of a rank's
    slowest link in B/s, or 0 if it is unknown. ``sweeps`` is the number of sweeps of the fabric
    that are still to come.
    """

    plans: Sequence[Plan]
    arms: Mapping[str, Sequence[Arm]]
    described: Mapping[str, Described]
    machine: Machine
    thresholds: Sequence[Threshold]
    slots: Slots
    link_bytes: float = 0.0
    launches: Sequence[LaunchRecord] = ()
    windows: Mapping[str, Mapping[str, Window]] = field(default_factory=dict)
    timeline: bool = True
    outline: bool = False
    sweeps: int = 0

    @cached_property
    def costs(self) -> LaunchCosts:
        """Return the costs of this run's launches."""
        return LaunchCosts(self.plans, self.described, self.machine, self.launches, self.link_bytes)

    @cached_property
    def _first_of_curves(self) -> Plan | None:
        """Return the first plan with a curve, whose baseline is probed on all devices, or None."""
        curves = (plan for plan in self.plans if any(c.curve for c in plan.contrasts))
        return next(curves, None)

    @cached_property
    def judged(self) -> Collection[str]:
        """Return the hashes of plans that a threshold judges; only these get further blocks."""
        return {
            plan.hash
            for plan in self.plans
            if contrast_data.ruled(plan, self.thresholds, self.machine)
        }

    def coming(self) -> Iterator[PendingLaunches]:
        """Yield every launch that is still to come.

        A gate, pilot, reference or profile is launched once if several plans need it.
        """
        yield from self._sweeps()
        have = _have(self.plans, self.launches, self.described)
        compiled = _compiled(self.plans, self.launches)
        for plan in self.plans:
            for purpose, slot, times in self._wanted(plan):
                last = purpose is Purpose.TIMED and times == 2 * plan.protocol.min_blocks
                if missing := self._missing(plan, purpose, slot, times, have):
                    yield from self._launches(plan, purpose, missing, compiled, last)

    def _sweeps(self) -> Iterator[PendingLaunches]:
        """Yield the sweeps of the fabric.

        The first sweep times every collective. Further sweeps time only the one that is judged.
        """
        several = [
            (plan, arm) for plan in self.plans for arm in plan.arms if arm.case.world_size > 1
        ]
        for number in range(self.sweeps if several else 0):
            plan, arm = max(several, key=lambda pair: pair[1].case.world_size)
            start_s = START_S[arm.case.device] + (NCCL_S if arm.case.device is Device.CUDA else 0)
            seconds = start_s + (SWEEP_S if not number else SWEEP_S / len(OPERATIONS))
            yield PendingLaunches(plan, Purpose.FABRIC, (arm,), seconds)

    def _wanted(self, plan: Plan) -> Iterator[Launches]:
        """Yield all launches that a plan needs, in the order of its stages."""
        arms = self.arms[plan.hash]
        measured = [arm for arm in arms if arm.role is not Role.CONTROL]
        trained = [arm for arm in measured if arm.role is not Role.ABLATION]
        gated = [arm for arm in arms if arm.role is not Role.ABLATION]
        yield from ((Purpose.GATE, slot, 1) for slot in self.slots(plan, gated))
        packed = self.slots(plan, measured)
        yield from self._pilots(plan, packed)
        if not plan.in_pilots:
            yield from ((Purpose.REFERENCE, slot, 1) for slot in self._references(plan, trained))
        judged = [arm for arm in measured if arm in plan.judged_arms]
        blocks = plan.protocol.min_blocks
        yield from ((Purpose.TIMED, slot, 2) for slot in packed if blocks)
        yield from ((Purpose.TIMED, slot, 2 * blocks) for slot in self.slots(plan, judged))
        profiled = rungs.profiled(plan, len(self.plans)) if self.timeline else []
        shown = self.slots(plan, [arm for arm in trained if arm in profiled])
        yield from ((Purpose.PROFILE, slot, 1) for slot in shown)

    def _references(self, plan: Plan, arms: Sequence[Arm]) -> Iterator[Sequence[Arm]]:
        """Yield groups of arms whose references train concurrently.

        References take fewer devices than their arms, so more references than arms can run
        concurrently.
        """
        streamed = [arm for arm in arms if self.costs.streams(arm.case)]
        named = {arm.name: arm for arm in arms if arm not in streamed}
        worlds = [replace(a, case=self.costs.reference_world(a.case)) for a in named.values()]
        yield from ([named[arm.name] for arm in slot] for slot in self.slots(plan, worlds))
        yield from ([arm] for arm in streamed)

    def _pilots(self, plan: Plan, packed: Sequence[Sequence[Arm]]) -> Iterator[Launches]:
        """Yield the pilots. If pilots run concurrently, yield probes of the baselines first.

        Probes show the slowdown by concurrent launches. Each baseline runs alone and concurrently.
        In plans with a curve, one baseline runs once on all devices instead. If no pilots run
        concurrently, the first pilot runs twice, which shows the launch-to-launch variation.
        """
        baselines = {name for contrast in plan.contrasts for name in contrast.baseline}
        beside = [arm for slot in packed if len(slot) > 1 for arm in slot]
        probed = [arm for arm in beside if arm.name in baselines]
        if not any(contrast.curve for contrast in plan.contrasts):
            yield from ((Purpose.PROBE, [arm], 2) for arm in probed)
        elif probed and plan is self._first_of_curves:
            yield Purpose.PROBE, probed[:1], 1
        for slot in packed:
            yield Purpose.PILOT, slot, 2 if not beside and slot is packed[0] else 1

    def _missing(
        self,
        plan: Plan,
        purpose: Purpose,
        slot: Sequence[Arm],
        times: int,
        have: Counter[object],
    ) -> list[tuple[Arm, int]]:
        """Return the arms of a slot that lack launches, and the number that each of them lacks.

        A slot contains arms that run concurrently. Afterwards ``have`` counts the missing launches
        as finished.
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
        purpose: Purpose,
        missing: Sequence[tuple[Arm, int]],
        compiled: set[object],
        last: bool,
    ) -> Iterator[PendingLaunches]:
        """Yield the predicted launches of several arms.

        ``missing`` contains arms that run concurrently, each with its number of missing launches.
        ``last`` says that no other launches of the plan follow. If the plan is judged, this
        function then also yields the time of the further blocks that it needs on average.
        """
        arms = tuple(arm for arm, _ in missing)
        took_s = max(
            self.costs.of(arm.case, purpose, self._window(plan, purpose, arm)) for arm in arms
        )
        compiling_s = max(_compiling_s(arm.case, purpose, compiled) for arm in arms)
        for arm in arms:
            compiled |= _graphs(arm.case, purpose)
        launch = PendingLaunches(plan, purpose, arms, took_s)
        yield replace(launch, seconds=took_s + compiling_s)
        yield from [launch] * (max(count for _, count in missing) - 1)
        if last and plan.hash in self.judged and not self._has_blocks(plan):
            yield replace(launch, seconds=2 * FURTHER[arms[0].case.device] * took_s)

    def _window(self, plan: Plan, purpose: Purpose, arm: Arm) -> Window:
        """Return the numbers of steps of a launch.

        For timed launches, they follow from the pilots if these have run.
        """
        if purpose is Purpose.PROFILE:
            return plan.profile(self.outline)
        if purpose not in (Purpose.TIMED, Purpose.REFERENCE):
            return plan.pilot if purpose is Purpose.PILOT else plan.window
        settled = self.windows.get(plan.hash, {})
        return settled.get(arm.name) or self.costs.lasting(plan, arm)

    def _has_blocks(self, plan: Plan) -> bool:
        """Return whether all planned blocks (``min_blocks``) of a plan were launched.

        A plan may get further blocks if its verdicts are still open.
        """
        begun = sum(
            launch.plan == plan.hash and launch.purpose is Purpose.TIMED for launch in self.launches
        )
        return begun >= plan.num_first_launches(self.arms[plan.hash])


def _start_s(case: CaseSpec) -> float:
    """Return the estimated time to start and end a world in s, if no launch was measured."""
    opens = NCCL_S if case.device is Device.CUDA and case.world_size > 1 else 0.0
    loads = COMPILED_S if case.compiled is Compiled.INDUCTOR else 0.0
    return START_S[case.device] + opens + loads


def _compiled(plans: Sequence[Plan], launches: Sequence[LaunchRecord]) -> set[object]:
    """Return the graphs that earlier launches left in Inductor's cache."""
    cases = {arm.case.hash: arm.case for plan in plans for arm in plan.arms}
    known = [launch for launch in launches if launch.case in cases]
    return {g for launch in known for g in _graphs(cases[launch.case], launch.purpose)}


def _compiling_s(case: CaseSpec, purpose: Purpose, compiled: Collection[object]) -> float:
    """Return the time in s that a world takes to compile graphs that are not yet compiled."""
    return COMPILING_S * len(_graphs(case, purpose) - set(compiled))


def _graphs(case: CaseSpec, purpose: Purpose) -> set[object]:
    """Return keys of the graphs that Inductor compiles for a launch.

    Each graph is compiled only once in a run, and then loaded from Inductor's cache. Blocks are
    compiled before a strategy wraps them, so their graphs do not depend on the strategy. Gates also
    compile the deterministic kernels of a small twin, which has the same size in all cases. A
    reference trains the plain model, which was compiled before.
    """
    if case.compiled is not Compiled.INDUCTOR or purpose is Purpose.REFERENCE:
        return set()
    block = (case.model, case.precision, case.checkpoint, case.selective)
    batch = case.micro_batch or Fraction(case.global_batch or 0, case.world_size)
    whole = (*block, case.size, case.seq_len, batch)
    return {block, (*whole, "repeatable")} if purpose is Purpose.GATE else {whole}


def _have(
    plans: Sequence[Plan], launches: Sequence[LaunchRecord], described: Mapping[str, Described]
) -> Counter[object]:
    """Return the number of finished launches by key."""
    by_hash = {plan.hash: plan for plan in plans}
    slots = set[tuple[str, str]]()
    have: Counter[object] = Counter()
    for launch in launches:
        if launch.slot and (launch.slot, launch.case) in slots:
            continue  # copies of one baseline that ran concurrently count as one launch
        slots.add((launch.slot, launch.case))
        have[_key(by_hash.get(launch.plan), launch.case, launch.purpose, described)] += 1
    return have


def _key(
    plan: Plan | None, case: str, purpose: Purpose, described: Mapping[str, Described]
) -> object:
    """Return the key of a launch, or None if no launch is needed.

    Launches with the same key can replace each other.
    """
    if plan is None:
        return purpose
    if purpose in (Purpose.PILOT, Purpose.PROBE):
        return purpose, case, plan.pilot
    if purpose is Purpose.REFERENCE:
        wanted = described[case].reference
        return None if wanted is None else (purpose, wanted.key)
    if purpose is Purpose.TIMED:
        return purpose, case, plan.hash
    return purpose, case
