"""Forecast: which launches are still to come, and how long they take.

    plans, what is known of their cases -> launches that they want, less those there are -> seconds

``plan``, the line after collection, the live line and its ETA read this one list. What a launch
takes is taken from launches like it where there are any, and from closed forms before.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

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
        for x in (x for x in launches if x.ranks):
            self._walls.setdefault((x.case, x.purpose), []).append(x.wall_s)
            if x.steps is not None:
                self._steps.setdefault(x.case, []).append(x.steps.mean_s)
                starts.append(x.wall_s - max(r.stepping_s for r in x.ranks))
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


def coming(  # noqa: PLR0913
    plans: Sequence[Plan],
    arms: Mapping[str, Sequence[Arm]],
    costs: LaunchCosts,
    described: Mapping[str, Described],
    slots: Slots,
    *,
    launches: Sequence[LaunchRecord] = (),
    windows: Mapping[str, Mapping[str, Window]] | None = None,
    timeline: bool = True,
    outline: bool = False,
) -> Iterator[Coming]:
    """Every launch that is still to come; plans share gates, pilots, references and profiles.

    ``arms`` maps a plan's hash to the arms that it is measured with, ``windows`` it to those that
    pilots have settled.
    """
    have = _have(plans, launches, described)
    compiled = _compiled(plans, launches)
    for plan in plans:
        timed_arms = arms[plan.hash]
        settled = (windows or {}).get(plan.hash, {})
        first = 2 * plan.protocol.min_blocks
        begun = sum(x.plan == plan.hash and x.purpose is Purpose.TIMED for x in launches)
        further = 2 * FURTHER if begun < first * len(timed_arms) else 0.0
        for purpose, window, times in (
            (Purpose.GATE, plan.window, 1),
            (Purpose.PILOT, plan.pilot, 1),
            (Purpose.REFERENCE, plan.window, 1),
            (Purpose.TIMED, plan.window, first),
            (Purpose.PROFILE, plan.profile(outline), int(timeline)),
        ):
            chosen = [arm for arm in timed_arms if _wanted(arm, purpose)]
            if purpose is Purpose.PROFILE:
                chosen = [arm for arm in chosen if arm in rungs.profiled(plan, len(plans))]
            grouped = slots(plan, chosen)
            for slot in grouped:
                twice = slot is grouped[0] and len(slot) == 1 and purpose is Purpose.PILOT
                probed = purpose is Purpose.PILOT and len(slot) > 1
                missing = times + twice + 2 * probed
                new = []
                for arm in slot:
                    key = _key(plan, arm.case.hash, purpose, described)
                    if key is not None and have[key] < missing:
                        new.append((arm, missing - have[key]))
                        have[key] = missing
                if not new:
                    continue
                windows_of = {arm.name: window for arm, _ in new}
                if purpose in (Purpose.TIMED, Purpose.REFERENCE):
                    windows_of = {arm.name: costs.lasting(plan, arm) for arm, _ in new}
                    windows_of.update(settled)
                took = max(costs.of(arm.case, purpose, windows_of[arm.name]) for arm, _ in new)
                took += _compiling_s([arm.case for arm, _ in new], compiled)
                many = max(count for _, count in new)
                yield from [Coming(plan, purpose, tuple(a for a, _ in new), took)] * many
                if purpose is Purpose.TIMED and further and plan.contrasts:
                    yield Coming(plan, purpose, tuple(a for a, _ in new), further * took)


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
    for x in launches:
        if x.slot and (x.slot, x.case) in slots:
            continue  # a baseline at several places at once
        slots.add((x.slot, x.case))
        purpose = Purpose.PILOT if x.purpose is Purpose.PROBE else x.purpose
        have[_key(by_hash.get(x.plan), x.case, purpose, described)] += 1
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
