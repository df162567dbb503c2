"""The Measurer: climbs, pilots, times and confirms plans, block by block, into one RunRecord.

It knows arms, turns and contrasts, nothing of world sizes but that a climb goes upwards. A plan is
measured once however often it is asked for; every block is written down before the next one.

    describe -> climb (gates, ascending) -> pilots -> windows frozen -> blocks until decided
    -> a fresh set where a FAIL would be reported -> verdicts
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import random
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import (
    admission,
    contrasts,
    doctor,
    judgement,
    machine,
    pilots,
    profiles,
    units,
    verdict,
)  # fmt: skip
from harness.discover import Catalogue
from harness.disk import FullDiskError
from harness.errors import ScaleproofError
from harness.launcher import Launcher, Order, mean_wall_s
from harness.outcome import Verdict
from harness.progress import Progress, moment, waiting
from harness.record import SCHEMA, Described, LaunchRecord, Purpose, RunRecord
from harness.recoverer import Recoverer
from harness.resume import unfinished
from harness.settings import Settings
from harness.spec import Arm, CaseSpec, Contrast, Plan, Role, Window
from harness.store import save
from harness.sweeper import Sweeper
from harness.thresholds import Statistic, Threshold


class Measurer:
    """One run: a record that grows plan by plan."""

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        thresholds: Sequence[Threshold],
        progress: Progress,
    ) -> None:
        self.catalogue, self.settings, self.progress = catalogue, settings, progress
        self.machine, self.software = machine.detect(), machine.software()
        self.began = time.monotonic()
        self.before_s, now = 0.0, datetime.datetime.now(datetime.UTC)
        self.started_at = now.isoformat(timespec="seconds")
        self.run = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.plans, self.described = list[Plan](), dict[str, Described]()
        self.launches: list[LaunchRecord] = []
        self.windows: dict[str, dict[str, Window]] = {}
        self.out_of_time, self.notes = list[str](), doctor.notes()
        self.admission: tuple[admission.Finding, ...] = ()
        self.nodes, self._examined = tuple[machine.Machine, ...](), False
        self._launcher = Launcher(
            catalogue, settings.engine, settings.where(self.run, catalogue.entries["engines"]),
            tune_loop_thread=settings.tune_loop_thread, poll_gpus=self.machine.num_gpus > 0,
        )  # fmt: skip
        self.sweeper = Sweeper(self._launcher, progress)
        self.recoverer = Recoverer(self._launcher, progress)
        self.launch_sd: float | None = None
        self.judge_by(thresholds)
        self._arms: dict[str, list[Arm]] = {}  # what is worth timing
        self._broken: dict[str, ScaleproofError] = {}
        self._done: dict[str, tuple[Verdict, ...]] = {}

    @property
    def folder(self) -> Path:
        """Where this run is written."""
        return self.settings.results / "runs" / self.machine.hardware_class / self.run

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on this run, all sittings, no queue."""
        return self.before_s + time.monotonic() - self.began - self._launcher.queued_s

    def judge_by(self, thresholds: Sequence[Threshold]) -> None:
        """The rules of this run; strict ones judge the worst pair."""
        self.thresholds = tuple(
            dataclasses.replace(t, statistic=Statistic.WORST) if self.settings.strict else t
            for t in thresholds
        )

    def resume(self, folder: Path) -> None:
        """Go on with an interrupted run: whole blocks are kept, a half-measured one is dropped."""
        self.meet()
        old = unfinished(folder, self.machine)
        self.run, self.started_at, self.before_s = old.run, old.started_at, old.elapsed_s
        self.described, self.notes = dict(old.described), list(old.notes)
        self.plans, self.thresholds = list(old.plans), old.thresholds
        self.windows = {plan: dict(found) for plan, found in old.windows.items()}
        self.admission, self.launch_sd = old.admission, old.launch_sd
        self.launches, self.sweeper.rows = list(old.launches), list(old.fabric)
        self.recoverer.trials = list(old.recoveries)

    def announce(self, plans: Sequence[Plan]) -> None:
        """Enter plans in the record before they are measured, so that none is lost."""
        known = {p.hash for p in self.plans}
        self.plans += [p for p in plans if p.hash not in known]

    @property
    def waiting(self) -> int:
        """Plans that are still to come."""
        return sum(p.hash not in self._done for p in self.plans)

    def warm(self) -> None:
        """See whether the host is fit, then start the agent: it imports torch while we go on.

        What was wrong in an earlier sitting of a resumed run stays wrong.
        """
        if not self._examined:
            self._examined = True
            earlier = [f for f in self.admission if f.level is admission.Level.BAD]
            now = admission.examine()
            self.admission = (*earlier, *now)
            for found in now:
                if found.level is not admission.Level.OK:
                    self.progress.note(f"{found.check}: {found.text} ({found.advice})")
        self._launcher.warm()
        self.meet()

    def meet(self) -> None:
        """Take the machine from the first node, where the engine reaches others than this one."""
        head = self.catalogue.get("engines", self.settings.engine).head["ENGINE"]
        if head.get("remote") and not self.nodes:
            self._launcher.ready(waiting(self.progress))
            self.nodes = tuple(node.machine for node in self._launcher.nodes)
            self.machine = self.nodes[0]
            self.notes += self._launcher.notes

    def describe(self, cases: Sequence[CaseSpec]) -> None:
        """Ask the agent about cases that are new."""
        unknown = list({c.hash: c for c in cases if c.hash not in self.described}.values())
        if unknown:
            self._launcher.ready(waiting(self.progress))
            answers = self._launcher.describe(unknown)
            self.described.update({c.hash: a for c, a in zip(unknown, answers, strict=True)})

    def measure(self, plans: Sequence[Plan]) -> None:
        """Measure what is not measured yet; ``verdicts`` gives the answers.

        A plan that cannot be measured (its engine broke) does not keep the others from it.
        """
        new = [p for p in plans if p.hash not in self._done and p.hash not in self._broken]
        if not new:
            return
        self.warm()
        self.announce(new)
        self._arms.update({p.hash: [] for p in new})
        try:
            if self.settings.fabric:
                self.sweeper.first(new, self.settings, self.folder)
            for stage in (self._climb, self._pilot):
                self._attempt(new, stage)
            self._freeze(new)
            self._attempt(new, self._first_blocks)
            while (undecided := self._most_undecided(new)) is not None:
                self._attempt([undecided], self._block)
            for stage in (self._profile, self._confirm):
                self._attempt(new, stage)
        except BaseException:
            self.save(complete=False)
            raise
        for plan in new:
            if plan.hash not in self._broken:
                self._done[plan.hash] = tuple(verdict.verdicts_of(self._bare(True), plan))
        self.save(complete=False)

    def verdicts(self, plan: Plan) -> tuple[Verdict, ...]:
        """A measured plan's verdicts; raises what kept it from being measured."""
        if plan.hash in self._broken:
            raise self._broken[plan.hash]
        return self._done[plan.hash]

    def record(self, *, complete: bool) -> RunRecord:
        """The run so far."""
        bare = self._bare(complete)
        return dataclasses.replace(bare, verdicts=judgement.verdicts(bare))

    def _bare(self, complete: bool) -> RunRecord:
        return RunRecord(
            schema=SCHEMA,
            run=self.run,
            started_at=self.started_at,
            complete=complete,
            machine=self.machine,
            software=self.software,
            settings=self.settings.texts,
            environment=machine.environment(),
            plans=tuple(self.plans),
            described=dict(self.described),
            launches=tuple(self.launches),
            thresholds=self.thresholds,
            notes=(*self.notes, *self.sweeper.notes),
            elapsed_s=self.elapsed_s,
            windows={plan: dict(found) for plan, found in self.windows.items()},
            nodes=self.nodes,
            fabric=tuple(self.sweeper.rows),
            recoveries=tuple(self.recoverer.trials),
            admission=self.admission,
            launch_sd=self.launch_sd,
            out_of_time=tuple(self.out_of_time),
            offered={
                kind: tuple(self.catalogue.entries[kind])
                for kind in ("strategies", "models", "compressors")
            },
        )

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """Verdicts of what was measured apart, and of the plans that were measured to their end."""
        apart = judgement.of_apart(self._bare(complete=True))
        return (*apart, *(v for found in self._done.values() for v in found))

    def save(self, *, complete: bool) -> RunRecord:
        """Write the run down, whole or not at all."""
        record = self.record(complete=complete)
        save(record, self.folder)
        return record

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
        gates = dict(contrasts.gates(self._bare(complete=False)))
        right, ended = set(), set()
        for arm in sorted(plan.arms, key=lambda a: a.case.world_size):
            answer = self.described[arm.case.hash]
            unfit = not verdict.fits(answer, arm.case, self.machine)
            if answer.error or answer.unsupported or unfit or arm.case.strategy in ended:
                continue
            if arm.role is Role.ABLATION:
                right.add(arm.name)  # wrong on purpose; timed only beside the arm it ablates
                continue
            if arm.case.hash not in gates:
                gates[arm.case.hash] = self._launch(plan, arm, Purpose.GATE)
            problem = verdict.gate_failure(gates[arm.case.hash])
            if problem is None:
                right.add(arm.name)
            elif arm.role is not Role.CONTROL:
                self.progress.note(f"{arm.case.id}: {problem}")
                ended.add(arm.case.strategy)
        needed = {
            name
            for c in self._of(plan)
            if {c.subject, *c.baseline} <= right
            for name in (c.subject, *c.baseline)
        }
        failed = any(not contrasts.usable(x) for x in self._timed(plan))  # of a resumed run
        if plan.protocol.max_blocks > 0 and not failed:
            self._arms[plan.hash] = [a for a in plan.arms if a.name in needed]

    def _pilot(self, plan: Plan) -> None:
        """Launches that settle steps and cut and are then discarded; the first arm's twice (A/A).

        Plans share the pilots of a case that they measure alike.
        """
        alike = {p.hash for p in self.plans if p.pilot == plan.pilot}
        arms = self._arms[plan.hash]
        for arm in [*arms[:1], *arms] if plan.hash not in self.windows else []:
            have = sum(
                x.purpose is Purpose.PILOT and x.case == arm.case.hash and x.plan in alike
                for x in self.launches
            )
            if have < (2 if arm is arms[0] else 1):
                if not self._usable(plan, self._launch(plan, arm, Purpose.PILOT, turn=have)):
                    return

    def _freeze(self, plans: Sequence[Plan]) -> None:
        """Settle every arm's window, before the first launch that counts."""
        run = self._bare(complete=False)
        found = pilots.read(run, self.folder)
        self.launch_sd = pilots.launch_sd(found)
        for plan in plans:
            if plan.hash not in self.windows and self._arms[plan.hash]:
                self.windows[plan.hash] = pilots.windows(plan, found)

    def _first_blocks(self, plan: Plan) -> None:
        """The blocks that every plan gets; a plan that the budget cannot hold gets none at all."""
        missing = plan.protocol.min_blocks - len(self._blocks_of(plan))
        if not self._arms[plan.hash] or missing <= 0:
            return
        if not self._in_time(missing * self._block_s(plan), self.settings.budget_s):
            self.out_of_time.append(plan.hash)
            self.progress.note(f"{plan.name}: cut, {missing} blocks are over the time budget")
            return
        while len(self._blocks_of(plan)) < plan.protocol.min_blocks and self._arms[plan.hash]:
            self._block(plan)

    def _most_undecided(self, plans: Sequence[Plan]) -> Plan | None:
        """The plan with the most open verdicts (then the widest interval) that has a block left."""
        limit = self.settings.budget_s or self.settings.more_until_s
        ranked: list[tuple[int, float, Plan]] = []
        for plan in plans:
            done = len(self._blocks_of(plan))
            room = 0 < done < plan.protocol.max_blocks
            if not self._arms[plan.hash] or plan.hash in self._broken or not room:
                continue
            if self._in_time(self._block_s(plan), limit) and (
                found := verdict.undecided(self._bare(True), plan)
            ):
                widths = [math.log(v.high / v.low) for v in found if v.low and v.high and v.low > 0]
                ranked.append((len(found), max(widths, default=0.0), plan))
        return max(ranked, key=lambda r: r[:2])[2] if ranked else None

    def _profile(self, plan: Plan, attempt: int = 0) -> None:
        """Profiled launches: one for each arm's budget, a set for each share that is judged."""
        if not self.settings.timeline or not self._arms[plan.hash]:
            return
        found = verdict.unconfirmed if attempt else verdict.verdicts_of
        names = {v.contrast for v in found(self._bare(True), plan) if v.rule}
        judged = [c for c in self._of(plan) if c.name in names]
        for arm, turn in profiles.missing(self._bare(True), plan, judged, attempt):
            mean_s = mean_wall_s(self.launches).get(arm.case.hash, 0.0)
            if not self._in_time(2 * mean_s, self.settings.budget_s):
                self.progress.note(f"{plan.name}: no timeline, it is over the time budget")
                return
            place = dict(block=turn // 2, turn=turn, attempt=attempt)
            if not self._usable(plan, self._launch(plan, arm, Purpose.PROFILE, **place)):
                break
        self.save(complete=False)

    def _confirm(self, plan: Plan) -> None:
        """A fresh set of launches of the arms whose FAIL would be reported."""
        self._profile(plan, attempt=1)
        found = verdict.unconfirmed(self._bare(True), plan)
        failing = {v.contrast for v in found if not units.profiled(v.metric)}
        if not failing:
            return
        needed = {a.name for a in plan.only([c for c in self._of(plan) if c.name in failing]).arms}
        self._arms[plan.hash] = [a for a in self._arms[plan.hash] if a.name in needed]
        cost, limit = self._block_s(plan), self.settings.budget_s
        if not self._in_time(plan.protocol.min_blocks * cost, limit):
            return
        self.progress.note(f"{plan.name}: a FAIL is measured again before it is reported")
        limit = limit or self.settings.more_until_s
        while (done := len(self._blocks_of(plan, 1))) < plan.protocol.max_blocks:
            enough = done >= plan.protocol.min_blocks
            still = verdict.unconfirmed(self._bare(True), plan)
            if enough and not (still and self._in_time(cost, limit)):
                return
            self._block(plan, attempt=1)
            if not self._arms[plan.hash]:
                return

    def _block(self, plan: Plan, attempt: int = 0) -> None:
        """One block: a pass over the arms in an order drawn from the seed, and one back."""
        arms = self._arms[plan.hash]
        have = self._blocks_of(plan, attempt)
        block = next(b for b in itertools.count() if b not in have)
        order = list(arms)
        random.Random(f"{plan.protocol.seed}-{attempt}-{block}").shuffle(order)
        for turn, arms_in_turn in ((2 * block, order), (2 * block + 1, order[::-1])):
            for arm in arms_in_turn:
                place = dict(block=block, turn=turn, attempt=attempt)
                if not self._usable(plan, self._launch(plan, arm, Purpose.TIMED, **place)):
                    return
        self.save(complete=False)

    def _usable(self, plan: Plan, launch: LaunchRecord) -> bool:
        """Whether the plan goes on: a launch that failed ends it, and nothing is tried again.

        What is measured for an explanation only, a profile or an ablation, ends alone.
        """
        if contrasts.usable(launch):
            return True
        problem = launch.wrong[0] if launch.wrong else verdict.blame(launch)
        arm = plan.arm(launch.arm)
        self.progress.note(f"{arm.case.id}: {problem}")
        if launch.purpose is Purpose.PROFILE:
            return False
        alone = arm.role is Role.ABLATION
        self._arms[plan.hash] = [a for a in self._arms[plan.hash] if alone and a is not arm]
        return alone

    def _of(self, plan: Plan) -> tuple[Contrast, ...]:
        return contrasts.of(plan, self.thresholds, self.machine.hardware_class)

    def _blocks_of(self, plan: Plan, attempt: int = 0) -> set[int]:
        """The blocks that were measured."""
        return {x.block for x in self._timed(plan) if x.attempt == attempt}

    def _timed(self, plan: Plan) -> list[LaunchRecord]:
        return [x for x in self.launches if x.plan == plan.hash and x.purpose is Purpose.TIMED]

    def _block_s(self, plan: Plan) -> float:
        """What another block of a plan will take."""
        wall_s = mean_wall_s(self.launches)
        return 2 * sum(wall_s.get(a.case.hash, 0.0) for a in self._arms[plan.hash])

    def _in_time(self, more_s: float, limit_s: float | None) -> bool:
        return limit_s is None or self.elapsed_s + more_s <= limit_s

    def _launch(
        self, plan: Plan, arm: Arm, purpose: Purpose, *,
        block: int = -1, turn: int = -1, attempt: int = 0,
    ) -> LaunchRecord:  # fmt: skip
        """Launch, enter in the record, and keep whoever watches informed."""
        window = plan.profile if purpose is Purpose.PROFILE else plan.pilot
        if purpose is Purpose.TIMED:
            window = self.windows.get(plan.hash, {}).get(arm.name, plan.pilot)
        order = Order(
            plan=plan, arm=arm, purpose=purpose, window=window, block=block, turn=turn,
            attempt=attempt,
        )  # fmt: skip
        left = [(p, self._arms.get(p.hash, p.arms)) for p in self.plans if p.hash not in self._done]
        now = moment(order, self.launches, self._arms[plan.hash], left, self.elapsed_s)

        def on_step(step: int) -> None:
            self.progress.show(dataclasses.replace(now, step=step, elapsed_s=self.elapsed_s))

        described = self.described[arm.case.hash]
        self.launches.append(self._launcher.launch(order, self.folder, described, on_step))
        return self.launches[-1]
