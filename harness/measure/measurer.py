"""The Measurer: climbs, pilots, times and confirms plans, block by block, into one Run.

It knows arms, turns and contrasts, nothing of world sizes but that a climb goes upwards. A plan is
measured once however often it is asked for; every block is written down before the next one.

    describe -> climb (gates, ascending) -> pilots -> windows frozen -> blocks until decided
    -> a fresh set where a FAIL would be reported -> verdicts
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.analysis.judging import judgement, obstacles, pairs
from harness.analysis.judging import verdicts as verdict
from harness.analysis.samples import pilots
from harness.base.errors import ScaleproofError
from harness.base.files import FullDiskError
from harness.host import admission
from harness.measure import profiling
from harness.measure.bench import Launcher, Order, mean_wall_s
from harness.measure.progress import Progress, moment, waiting
from harness.measure.recoverer import Recoverer
from harness.measure.run import Run
from harness.measure.settings import Settings
from harness.measure.sweeper import Sweeper
from harness.record import LaunchRecord, Purpose
from harness.record.outcome import Verdict
from harness.spec import Arm, CaseSpec, Plan, Role, metrics
from harness.spec.catalogue import Catalogue
from harness.spec.rules import Threshold


class Measurer:
    """Measures plans; ``run`` is what it has so far."""

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        thresholds: Sequence[Threshold],
        progress: Progress,
    ) -> None:
        self.catalogue, self.settings, self.progress = catalogue, settings, progress
        self.run = Run(catalogue, settings, thresholds, lambda: self._launcher.queued_s)
        self._launcher: Launcher = Launcher(
            catalogue, settings.engine, settings.where(self.run.name, catalogue.entries["engines"]),
            tune_loop_thread=settings.tune_loop_thread, poll_gpus=self.run.machine.num_gpus > 0,
        )  # fmt: skip
        self.sweeper = Sweeper(self._launcher, progress, self.run)
        self.recoverer = Recoverer(self._launcher, progress, self.run)
        self._examined = False
        self._arms: dict[str, list[Arm]] = {}  # what is worth timing
        self._broken: dict[str, ScaleproofError] = {}
        self._done: dict[str, tuple[Verdict, ...]] = {}

    def resume(self, folder: Path) -> None:
        """Go on with an interrupted run, on the machine that it was begun on."""
        self.meet()
        self.run.resume(folder)

    @property
    def waiting(self) -> int:
        """Plans that are still to come."""
        return sum(p.hash not in self._done for p in self.run.plans)

    def warm(self) -> None:
        """See whether the host is fit, then start the agent: it imports torch while we go on.

        What was wrong in an earlier sitting of a resumed run stays wrong.
        """
        if not self._examined:
            self._examined = True
            earlier = [f for f in self.run.admission if f.level is admission.Level.BAD]
            now = admission.examine()
            self.run.admission = (*earlier, *now)
            for found in now:
                if found.level is not admission.Level.OK:
                    self.progress.note(f"{found.check}: {found.text} ({found.advice})")
        self._launcher.warm()
        self.meet()

    def meet(self) -> None:
        """Take the machine from the first node, where the engine reaches others than this one."""
        head = self.catalogue.get("engines", self.settings.engine).head["ENGINE"]
        if head.get("remote") and not self.run.nodes:
            self._launcher.ready(waiting(self.progress))
            self.run.nodes = tuple(node.machine for node in self._launcher.nodes)
            self.run.machine = self.run.nodes[0]
            self.run.notes += self._launcher.notes

    def describe(self, cases: Sequence[CaseSpec]) -> None:
        """Ask the agent about cases that are new."""
        unknown = list({c.hash: c for c in cases if c.hash not in self.run.described}.values())
        if unknown:
            self._launcher.ready(waiting(self.progress))
            answers = self._launcher.describe(unknown)
            self.run.described.update({c.hash: a for c, a in zip(unknown, answers, strict=True)})

    def measure(self, plans: Sequence[Plan]) -> None:
        """Measure what is not measured yet; ``verdicts`` gives the answers.

        A plan that cannot be measured (its engine broke) does not keep the others from it.
        """
        new = [p for p in plans if p.hash not in self._done and p.hash not in self._broken]
        if not new:
            return
        self.warm()
        self.run.announce(new)
        self._arms.update({p.hash: [] for p in new})
        try:
            if self.settings.fabric:
                self.sweeper.first(new)
            for stage in (self._climb, self._pilot):
                self._attempt(new, stage)
            self._freeze(new)
            self._attempt(new, self._first_blocks)
            while (undecided := self._most_undecided(new)) is not None:
                self._attempt([undecided], self._block)
            for stage in (self._profile, self._confirm):
                self._attempt(new, stage)
        except BaseException:
            self.run.save(complete=False)
            raise
        for plan in new:
            if plan.hash not in self._broken:
                self._done[plan.hash] = tuple(verdict.verdicts_of(self.run.bare(), plan))
        self.run.save(complete=False)

    def verdicts(self, plan: Plan) -> tuple[Verdict, ...]:
        """A measured plan's verdicts; raises what kept it from being measured."""
        if plan.hash in self._broken:
            raise self._broken[plan.hash]
        return self._done[plan.hash]

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """Verdicts of what was measured apart, and of the plans that were measured to their end."""
        apart = judgement.of_apart(self.run.bare())
        return (*apart, *(v for found in self._done.values() for v in found))

    def close(self) -> None:
        """Stop the engine and the agent."""
        self._launcher.close()

    def _attempt(self, plans: Sequence[Plan], stage: Callable[[Plan], None]) -> None:
        """One stage of plans; what breaks one is kept for whoever asks for its verdicts."""
        for plan in (p for p in plans if p.hash not in self._broken):
            try:
                stage(plan)
            except FullDiskError:
                raise
            except ScaleproofError as error:
                self._broken[plan.hash] = error
                self.progress.note(f"{plan.name}: {error.what}")

    def _climb(self, plan: Plan) -> None:
        """Gate every case that can run, smallest world first: what is right is worth timing.

        The climb of a strategy ends at its first wrong rung: the larger ones are not launched.
        """
        self.describe([a.case for a in plan.arms])
        gates = dict(pairs.gates(self.run.bare(complete=False)))
        right, ended = set(), set()
        for arm in sorted(plan.arms, key=lambda a: a.case.world_size):
            answer = self.run.described[arm.case.hash]
            unfit = not obstacles.fits(answer, arm.case, self.run.machine)
            if answer.error or answer.unsupported or unfit or arm.case.strategy in ended:
                continue
            if arm.role is Role.ABLATION:
                right.add(arm.name)  # wrong on purpose; timed only beside the arm it ablates
                continue
            if arm.case.hash not in gates:
                gates[arm.case.hash] = self._launch(plan, arm, Purpose.GATE)
            problem = obstacles.gate_failure(gates[arm.case.hash])
            if problem is None:
                right.add(arm.name)
            elif arm.role is not Role.CONTROL:
                self.progress.note(f"{arm.case.id}: {problem}")
                ended.add(arm.case.strategy)
        needed = {
            name
            for c in self.run.contrasts_of(plan)
            if {c.subject, *c.baseline} <= right
            for name in (c.subject, *c.baseline)
        }
        failed = any(not pairs.usable(x) for x in self.run.timed(plan))  # of a resumed run
        if plan.protocol.max_blocks > 0 and not failed:
            self._arms[plan.hash] = [a for a in plan.arms if a.name in needed]

    def _pilot(self, plan: Plan) -> None:
        """Launches that settle steps and cut and are then discarded; the first arm's twice (A/A).

        Plans share the pilots of a case that they measure alike.
        """
        alike = {p.hash for p in self.run.plans if p.pilot == plan.pilot}
        arms = self._arms[plan.hash]
        for arm in [*arms[:1], *arms] if plan.hash not in self.run.windows else []:
            have = sum(
                x.purpose is Purpose.PILOT and x.case == arm.case.hash and x.plan in alike
                for x in self.run.launches
            )
            if have < (2 if arm is arms[0] else 1):
                if not self._usable(plan, self._launch(plan, arm, Purpose.PILOT, turn=have)):
                    return

    def _freeze(self, plans: Sequence[Plan]) -> None:
        """Settle every arm's window, before the first launch that counts."""
        run = self.run.bare(complete=False)
        found = pilots.read(run, self.run.folder)
        self.run.launch_sd = pilots.launch_sd(found)
        for plan in plans:
            if plan.hash not in self.run.windows and self._arms[plan.hash]:
                self.run.windows[plan.hash] = pilots.windows(plan, found)

    def _first_blocks(self, plan: Plan) -> None:
        """The blocks that every plan gets; a plan that the budget cannot hold gets none at all."""
        missing = plan.protocol.min_blocks - len(self.run.blocks_of(plan))
        if not self._arms[plan.hash] or missing <= 0:
            return
        if not self.run.in_time(missing * self._block_s(plan), self.settings.budget_s):
            self.run.out_of_time.append(plan.hash)
            self.progress.note(f"{plan.name}: cut, {missing} blocks are over the time budget")
            return
        while len(self.run.blocks_of(plan)) < plan.protocol.min_blocks and self._arms[plan.hash]:
            self._block(plan)

    def _most_undecided(self, plans: Sequence[Plan]) -> Plan | None:
        """The plan with the most open verdicts (then the widest interval) that has a block left."""
        limit = self.settings.budget_s or self.settings.more_until_s
        ranked: list[tuple[int, float, Plan]] = []
        for plan in plans:
            done = len(self.run.blocks_of(plan))
            room = 0 < done < plan.protocol.max_blocks
            if not self._arms[plan.hash] or plan.hash in self._broken or not room:
                continue
            if self.run.in_time(self._block_s(plan), limit) and (
                found := verdict.undecided(self.run.bare(), plan)
            ):
                widths = [math.log(v.high / v.low) for v in found if v.low and v.high and v.low > 0]
                ranked.append((len(found), max(widths, default=0.0), plan))
        return max(ranked, key=lambda r: r[:2])[2] if ranked else None

    def _profile(self, plan: Plan, attempt: int = 0) -> None:
        """Profiled launches: one for each arm's budget, a set for each share that is judged."""
        if not self.settings.timeline or not self._arms[plan.hash]:
            return
        found = verdict.unconfirmed if attempt else verdict.verdicts_of
        names = {v.contrast for v in found(self.run.bare(), plan) if v.rule}
        judged = [c for c in self.run.contrasts_of(plan) if c.name in names]
        for arm, turn in profiling.missing(self.run.bare(), plan, judged, attempt):
            mean_s = mean_wall_s(self.run.launches).get(arm.case.hash, 0.0)
            if not self.run.in_time(2 * mean_s, self.settings.budget_s):
                self.progress.note(f"{plan.name}: no timeline, it is over the time budget")
                return
            place = dict(block=turn // 2, turn=turn, attempt=attempt)
            if not self._usable(plan, self._launch(plan, arm, Purpose.PROFILE, **place)):
                break
        self.run.save(complete=False)

    def _confirm(self, plan: Plan) -> None:
        """A fresh set of launches of the arms whose FAIL would be reported."""
        self._profile(plan, attempt=1)
        found = verdict.unconfirmed(self.run.bare(), plan)
        failing = {v.contrast for v in found if not metrics.profiled(v.metric)}
        if not failing:
            return
        contrasts_ = [c for c in self.run.contrasts_of(plan) if c.name in failing]
        needed = {a.name for a in plan.only(contrasts_).arms}
        self._arms[plan.hash] = [a for a in self._arms[plan.hash] if a.name in needed]
        cost, limit = self._block_s(plan), self.settings.budget_s
        if not self.run.in_time(plan.protocol.min_blocks * cost, limit):
            return
        self.progress.note(f"{plan.name}: a FAIL is measured again before it is reported")
        limit = limit or self.settings.more_until_s
        while (done := len(self.run.blocks_of(plan, 1))) < plan.protocol.max_blocks:
            enough = done >= plan.protocol.min_blocks
            still = verdict.unconfirmed(self.run.bare(), plan)
            if enough and not (still and self.run.in_time(cost, limit)):
                return
            self._block(plan, attempt=1)
            if not self._arms[plan.hash]:
                return

    def _block(self, plan: Plan, attempt: int = 0) -> None:
        """One block: a pass over the arms in an order drawn from the seed, and one back."""
        arms = self._arms[plan.hash]
        have = self.run.blocks_of(plan, attempt)
        block = next(b for b in itertools.count() if b not in have)
        order = list(arms)
        random.Random(f"{plan.protocol.seed}-{attempt}-{block}").shuffle(order)
        for turn, arms_in_turn in ((2 * block, order), (2 * block + 1, order[::-1])):
            for arm in arms_in_turn:
                place = dict(block=block, turn=turn, attempt=attempt)
                if not self._usable(plan, self._launch(plan, arm, Purpose.TIMED, **place)):
                    return
        self.run.save(complete=False)

    def _usable(self, plan: Plan, launch: LaunchRecord) -> bool:
        """Whether the plan goes on: a launch that failed ends it, and nothing is tried again.

        What is measured for an explanation only, a profile or an ablation, ends alone.
        """
        if pairs.usable(launch):
            return True
        problem = launch.wrong[0] if launch.wrong else obstacles.blame(launch)
        arm = plan.arm(launch.arm)
        self.progress.note(f"{arm.case.id}: {problem}")
        if launch.purpose is Purpose.PROFILE:
            return False
        alone = arm.role is Role.ABLATION
        self._arms[plan.hash] = [a for a in self._arms[plan.hash] if alone and a is not arm]
        return alone

    def _block_s(self, plan: Plan) -> float:
        return self.run.block_s(self._arms[plan.hash])

    def _launch(
        self, plan: Plan, arm: Arm, purpose: Purpose, *,
        block: int = -1, turn: int = -1, attempt: int = 0,
    ) -> LaunchRecord:  # fmt: skip
        """Launch, enter in the record, and keep whoever watches informed."""
        window = plan.profile if purpose is Purpose.PROFILE else plan.pilot
        if purpose is Purpose.TIMED:
            window = self.run.windows.get(plan.hash, {}).get(arm.name, plan.pilot)
        order = Order(
            plan=plan, arm=arm, purpose=purpose, window=window, block=block, turn=turn,
            attempt=attempt,
        )  # fmt: skip
        run = self.run
        left = [(p, self._arms.get(p.hash, p.arms)) for p in run.plans if p.hash not in self._done]
        now = moment(order, run.launches, self._arms[plan.hash], left, run.elapsed_s)

        def on_step(step: int) -> None:
            self.progress.show(dataclasses.replace(now, step=step, elapsed_s=run.elapsed_s))

        described = run.described[arm.case.hash]
        run.launches.append(self._launcher.launch(order, run.folder, described, on_step))
        return run.launches[-1]
