"""The Measurer: checks, calibrates, times and confirms plans, block by block, in one Run.

It handles arms, turns and contrasts. It uses world sizes only to sort the correctness checks, which
go from the smallest world size up. A plan is measured once, however often it is requested.
Every launch is entered in the chain as soon as it has ended.

    describe -> climb (gates, ascending) -> pilots -> windows frozen -> blocks until decided
    -> a fresh set if a FAIL would be reported -> verdicts

A gate is the launch of a correctness check, and a pilot is a calibration launch. All plans go
through these stages together. If a run takes long or has a time budget, each plan gets its first
blocks before the next plan begins.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from harness.analysis import forecast
from harness.analysis.judging import blockers, verdicts
from harness.analysis.judging.verdicts import unconfirmed
from harness.analysis.script.same_training import may_be_ragged
from harness.base.errors import RetryableError, ScaleproofError
from harness.base.files import UnwrittenError
from harness.base.formatting import duration, rate
from harness.cases import Arm, Plan, Role, Window, metrics
from harness.measure import (
    orders as blocks,
    orders as leading,
    orders as piloting,
    orders as profiling,
    orders as referring,
    together,
)
from harness.measure.confirming import confirm
from harness.measure.order import Order
from harness.measure.orders import climb
from harness.measure.progress import Moment
from harness.measure.session import Session
from harness.measure.sweeper import Sweeper
from harness.record import Block, LaunchRecord, Purpose, Reason, Verdict


class Measurer:
    """Measures plans. ``run`` holds the measurements so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.run = session.run
        self._progress = session.progress
        self._budget_s = session.settings.budget_s
        self._limit_s = self._budget_s or session.settings.more_until_s
        self._arms: dict[str, list[Arm]] = {}  # plan hash -> the arms that are timed
        self._broken: dict[str, ScaleproofError] = {}
        self._done: dict[str, tuple[Verdict, ...]] = {}

    @property
    def waiting(self) -> list[Plan]:
        """The plans that are still to be measured."""
        return [plan for plan in self.run.plans if plan.hash not in self._done]

    def measure(self, plans: Sequence[Plan]) -> None:
        """Measure the plans that are not measured yet; ``verdicts`` returns their verdicts.

        If a plan cannot be measured, for example because its engine broke, the other plans still
        are.
        """
        new = [p for p in plans if p.hash not in self._done and p.hash not in self._broken]
        if not new:
            return
        self._session.warm()
        self.run.announce(new)
        self._arms.update({p.hash: [] for p in new})
        try:
            if self._session.settings.fabric:
                Sweeper(self._session).first(new)
            for group in self._groups(leading.ordered(new)):
                self._begin(group)
                if len(group) == 1:
                    self._tell(group[0])
            # After a FAIL at the largest world size the smaller ones are judged, too. Therefore
            # decide twice.
            for _ in range(2):
                self._decide(new)
            done = [plan for plan in new if plan.hash not in self._broken]
            self._done |= {p.hash: tuple(verdicts.of_plan(self.run.bare(), p)) for p in done}
        finally:  # also done if an error ended the measurement
            self.run.keep()

    def _decide(self, plans: Sequence[Plan]) -> None:
        """Measure blocks for undecided verdicts, then a fresh set for verdicts that would FAIL."""
        while block := blocks.next_block(self.run, plans, self._arms, self._more_until_s(plans)):
            further = functools.partial(self._further, arms=block.arms, alone=block.baselines_alone)
            self._attempt([block.plan], further)
        for stage in (self._profile, self._confirm):
            self._attempt(plans, stage)

    def _groups(self, plans: Sequence[Plan]) -> list[Sequence[Plan]]:
        """Return the groups of plans that go through the stages together."""
        cases = {arm.case.hash for plan in plans for arm in plan.arms}
        described = cases <= self.run.described.keys()
        long = described and left_s(self._session, plans, self._arms) > leading.LONG_S
        return [[plan] for plan in plans] if long or self._budget_s else [plans]

    def _tell(self, plan: Plan) -> None:
        """Report the verdict of a plan so far to the progress display."""
        if plan.hash not in self._broken and self.waiting != [plan]:
            judged = verdicts.of_plan(self.run.bare(), plan)
            sentence = leading.first_verdict(judged, self.run.elapsed_s)
            if sentence is not None:
                self._progress.note(sentence)

    def _begin(self, plans: Sequence[Plan]) -> None:
        """Run the stages of plans, from correctness checks to the blocks that every plan gets."""
        for stage in (self._climb, self._pilot):
            self._attempt(plans, stage)
        piloting.freeze(self.run, [plan for plan in plans if self._arms[plan.hash]])
        for stage in (self._refer, self._finish, self._first_blocks):
            self._attempt(plans, stage)

    def _more_until_s(self, plans: Sequence[Plan]) -> float | None:
        """Return the elapsed time (s) until which more blocks may start, or None without a limit.

        The time that the remaining launches need is reserved.
        """
        if self._limit_s is None:
            return None
        return self._limit_s - left_s(self._session, plans, self._arms)

    def broken(self, plan: Plan) -> ScaleproofError | None:
        """Return the error that kept a plan from being measured, or None."""
        return self._broken.get(plan.hash)

    @property
    def lost(self) -> bool:
        """Whether nodes were lost permanently: the run can be resumed after they return."""
        return any(isinstance(error, RetryableError) for error in self._broken.values())

    def verdicts(self, plan: Plan) -> tuple[Verdict, ...]:
        """Return the verdicts of a measured plan, or raise the error that kept it from being
        measured.
        """
        if plan.hash in self._broken:
            raise self._broken[plan.hash]
        return self._done[plan.hash]

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """The verdicts of sweeps and trials, and of the plans that were measured completely."""
        apart = verdicts.of_series(self.run.bare())
        return (
            *apart,
            *(verdict for plan_verdicts in self._done.values() for verdict in plan_verdicts),
        )

    def _attempt(self, plans: Sequence[Plan], stage: Callable[[Plan], None]) -> None:
        """Run one stage of each plan. If a plan breaks, store its error."""
        for plan in (p for p in plans if p.hash not in self._broken):
            try:
                stage(plan)
            except UnwrittenError:
                raise
            except ScaleproofError as error:
                self._broken[plan.hash] = error
                self._arms[plan.hash] = []
                self._progress.note(f"{plan.brief}: {error.what}")

    def _climb(self, plan: Plan) -> None:
        """Run the correctness checks of a plan and keep the arms that are worth timing."""
        if self._late(plan, "its gates"):
            return
        self._arms[plan.hash] = climb(
            self._session, plan, lambda arms: self._launch(plan, arms, Purpose.GATE)
        )

    def _pilot(self, plan: Plan) -> None:
        """Run the missing calibration launches of a plan."""
        for purpose, turn, arms in piloting.missing_pilots(
            self.run, plan, lambda: self._slots(plan)
        ):
            if self._late(plan, "its pilots"):
                return
            if not self._usable(plan, self._launch(plan, arms, purpose, turn=turn)):
                return
        if any(arm.case.script for arm in plan.arms):
            self._refuse_unlike(plan)

    def _late(self, plan: Plan, stage: str) -> bool:
        """Return whether the time budget ended before this stage; if so, end the plan."""
        if self._budget_s is None or self.run.in_time(0.0, self._budget_s):
            return False
        budget = duration(self._budget_s)
        self._progress.note(
            f"{plan.brief}: not measured, the time budget of {budget} ended before {stage}"
        )
        self.run.out_of_time.append(plan.hash)
        self._arms[plan.hash] = []
        return True

    def _refuse_unlike(self, plan: Plan) -> None:
        """Stop a plan of a script if its calibration launches show inconsistent training between
        worlds.
        """
        for verdict in verdicts.of_plan(self.run.bare(), plan):
            differs = verdict.reason is Reason.INCORRECT and not may_be_ragged(verdict.detail)
            if differs and self._arms[plan.hash]:
                self._progress.note(f"{verdict.case}: {verdict.detail}")
                self._arms[plan.hash] = []

    def _refer(self, plan: Plan, arms: Sequence[Arm] = (), *, replicated: bool = False) -> None:
        """Train the references that the losses of timed launches are compared with.

        A reference is trained once for all cases that share it.
        """
        if plan.in_pilots:
            return  # no arm is timed, so no reference is needed
        of_arms = arms or self._arms[plan.hash]
        for arms, wanted in referring.missing_references(
            self._session, plan, of_arms, replicated=replicated
        ):
            if not replicated and self._late(plan, "its reference"):
                return
            self._launch(
                plan,
                arms,
                Purpose.REFERENCE,
                window=Window(steps=wanted.steps, cut=0),
                streamed=wanted.streamed,
                replicates=wanted.replicates,
            )

    def _first_blocks(self, plan: Plan) -> None:
        """Measure the blocks that every plan gets.

        A plan gets none if the time budget does not suffice for all of them.
        """
        missing = plan.protocol.min_blocks - len(self.run.blocks_of(plan))
        if not self._arms[plan.hash] or missing <= 0:
            return
        if not self.run.in_time(missing * self.run.block_s(self._slots(plan)), self._budget_s):
            self.run.out_of_time.append(plan.hash)
            self._progress.note(
                f"{plan.brief}: not measured, {missing} blocks exceed the time budget"
            )
            return
        while len(begun := self.run.blocks_of(plan)) < plan.protocol.min_blocks:
            arms = [a for a in self._arms[plan.hash] if not begun or a in plan.judged_arms]
            if not arms:
                return
            self._block(plan, arms=arms)

    def _profile(self, plan: Plan, attempt: int = 0) -> None:
        """Make the profiled launches: one for the budget of each arm, and several for each judged
        part of a step.

        A second pass repeats a profile if its step time differs from the timed launches.
        """
        if not self._session.settings.timeline or not self._arms[plan.hash]:
            return
        looks = (profiling.missing_profiles(self._session, plan, attempt) for _ in range(2))
        for turn, arms in itertools.chain.from_iterable(looks):
            if not self.run.in_time(self.run.block_s([arms]), self._budget_s):
                self._progress.note(
                    f"{plan.brief}: no timeline, because profiling exceeds the time budget"
                )
                return
            done = self._launch(plan, arms, Purpose.PROFILE, turn=turn, attempt=attempt)
            if not self._usable(plan, done):
                break
        self.run.keep()

    def _confirm(self, plan: Plan) -> None:
        """Measure a fresh set of launches of the arms whose FAIL would be reported."""
        self._profile(plan, attempt=1)

        def judged() -> list[Verdict]:
            plan_verdicts = verdicts.of_plan(self.run.bare(), plan)
            return [
                verdict for verdict in plan_verdicts if not metrics.metric(verdict.metric).profiled
            ]

        if not (failing := unconfirmed(judged())):
            return
        arms = self._arms[plan.hash] = blocks.needed(self.run, plan, failing, self._arms[plan.hash])
        cost_s = self.run.block_s([[arm] for arm in arms])
        least = plan.protocol.min_blocks
        if not self.run.in_time(least * cost_s, self._budget_s):
            return
        self._progress.note(f"{plan.brief}: a FAIL is measured again before it is reported")

        def again(_: Sequence[Verdict]) -> bool:
            done = len(self.run.blocks_of(plan, 1))
            late = done >= least and not self.run.in_time(cost_s, self._limit_s)
            if done >= plan.protocol.max_blocks or late:
                return False
            for _more in range(max(1, least - done)):
                if self._arms[plan.hash]:
                    self._block(plan, attempt=1, apart=[arm.name for arm in arms])
            return bool(self._arms[plan.hash])

        confirm(judged, again)

    def _slots(self, plan: Plan) -> list[list[Arm]]:
        """Return the timed arms of a plan in groups that run concurrently."""
        return together.groups(self._session, plan, self._arms.get(plan.hash, plan.arms))

    def _further(self, plan: Plan, arms: Sequence[Arm], alone: bool) -> None:
        """Launch a block of these arms, which may decide a verdict.

        If ``alone`` is set, only the effect of concurrent worlds is uncertain. Then launch one more
        probe of a baseline instead. If no probe is left, launch the block with its baselines alone.
        """
        if alone and (probe := piloting.probe_again(self.run, arms)) is not None:
            turn, arm = probe
            self._usable(plan, self._launch(plan, [arm], Purpose.PROBE, turn=turn))
            return
        baselines = {name for contrast in plan.contrasts for name in contrast.baseline}
        self._block(plan, arms=arms, apart=baselines if alone else ())

    def _block(
        self, plan: Plan, attempt: int = 0, arms: Sequence[Arm] = (), apart: Collection[str] = ()
    ) -> None:
        """Measure one block: one pass over the arms in random order, then one in reverse order.

        ``attempt`` is 1 in the fresh set that confirms a FAIL, otherwise 0. The arms that ``apart``
        names run without concurrent worlds.
        """
        arms = arms or self._arms[plan.hash]
        slots = together.groups(self._session, plan, arms, apart)
        have = self.run.blocks_of(plan, attempt)
        number = next(b for b in itertools.count() if b not in have)
        block = blocks.drawn(plan, attempt, number, slots)
        self.run.begin(block)
        self._launch_missing(plan, block)

    def _finish(self, plan: Plan) -> None:
        """Complete blocks that an interrupt left open, so that every begun pair is measured."""
        for block in self.run.blocks:
            if block.plan == plan.hash and self._arms[plan.hash]:
                self._launch_missing(plan, block)

    def _launch_missing(self, plan: Plan, block: Block) -> None:
        """Make the launches of a block that are still missing, until one of them is not usable."""
        while remaining := next(blocks.missing_timed(self.run, plan, block), None):
            turn, arms = remaining
            profiled = profiling.behind(self._session, plan, block, turn, arms)
            done = self._launch(
                plan, arms, Purpose.TIMED, turn=turn, attempt=block.attempt, profiled=profiled
            )
            self._usable(plan, [x for x in done if x.purpose is Purpose.PROFILE])
            if not self._usable(plan, [x for x in done if x.purpose is not Purpose.PROFILE]):
                return
        self.run.keep()

    def _usable(self, plan: Plan, launches: Sequence[LaunchRecord]) -> bool:
        """Return whether the plan continues after these launches.

        A failed launch ends its plan. A failed ablation, or a failed arm of a plan without
        comparisons, ends only that arm. A failed profile ends only the profiling.
        """
        for launch in (x for x in launches if not (x.usable or x.discarded)):
            arm = plan.arm(launch.arm)
            wrong = [*launch.wrong, blockers.blame(launch)]
            self._progress.note(f"{arm.case.brief}: {wrong[0]}")
            if launch.purpose is Purpose.PROFILE:
                return False
            if arm.role is not Role.ABLATION and not plan.in_pilots:
                self._arms[plan.hash] = []
                return False
            self._arms[plan.hash] = [a for a in self._arms[plan.hash] if a is not arm]
        return True

    def _launch(
        self, plan: Plan, arms: Sequence[Arm], purpose: Purpose, **more: Any
    ) -> list[LaunchRecord]:
        """Launch arms concurrently. ``more`` are further arguments of ``together.orders``."""
        wanted = functools.partial(together.orders, self._session, plan, arms, purpose, **more)
        orders = wanted()
        now = moment(self._session, orders[0], self._arms, self.waiting)

        def replicate() -> list[Order]:
            self._refer(plan, arms, replicated=True)
            return wanted()

        return self._session.launch(orders, now, replicate)


def left_s(session: Session, plans: Sequence[Plan], arms: Mapping[str, Sequence[Arm]]) -> float:
    """Return the predicted time (s) that the rest of these plans takes.

    ``arms`` maps the hash of a plan to its timed arms.
    """
    run = session.run
    possible = {plan.hash: arms.get(plan.hash) or _described(session, plan) for plan in plans}
    expected = forecast.Forecast(
        plans=plans,
        arms=possible,
        described=run.described,
        machine=run.machine,
        thresholds=run.thresholds,
        slots=functools.partial(together.groups, session),
        launches=run.launches,
        windows=run.windows,
        timeline=session.settings.timeline,
        outline=session.settings.outline,
    )
    return sum(launch.seconds for launch in expected.coming())


def _described(session: Session, plan: Plan) -> list[Arm]:
    """Return the arms of a plan that can be launched according to the descriptions so far."""
    known, on = session.run.described, session.run.machine
    arms_described = [(arm, known[arm.case.hash]) for arm in plan.arms if arm.case.hash in known]
    return [
        arm
        for arm, description in arms_described
        if not description.error and blockers.fits(description, arm.case, on)
    ]


def moment(
    session: Session, order: Order, arms: Mapping[str, Sequence[Arm]], waiting: Sequence[Plan]
) -> Moment:
    """Return the progress of a run at the start of a launch.

    ``arms`` maps the hash of a plan to its timed arms. ``waiting`` are the unfinished plans.
    """
    run = session.run
    timed = run.timed(order.plan)
    plans = [plan.hash for plan in run.plans]
    last_rate = timed[-1].throughput if timed else None
    num_wanted = order.plan.num_first_launches(arms.get(order.plan.hash, ()))
    return Moment(
        plan=order.plan.name,
        number=plans.index(order.plan.hash) + 1,
        num_plans=len(plans),
        arm=order.arm.case.brief,
        purpose=order.purpose,
        launch=len(timed) + 1,
        num_launches=max(num_wanted, len(timed) + 1),
        step=0,
        num_steps=order.window.steps,
        elapsed_s=run.elapsed_s,
        left_s=left_s(session, waiting, arms)
        if any(launch.steps for launch in run.launches)
        else None,
        last="" if last_rate is None else f"{rate(last_rate)} samples/s",
    )
