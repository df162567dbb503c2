"""The Measurer: describes, checks and times plans, block by block, into one RunRecord.

It knows arms, turns and contrasts, nothing of ladders or world sizes. A plan is measured once
however often it is asked for; every block is written down before the next one starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness import contrasts, derive, doctor, machine, nvml, verdict
from harness.beat import Beats
from harness.codec import Json, from_doc
from harness.discover import Catalogue
from harness.errors import RecordError
from harness.launch import engine as engines
from harness.launch import failure
from harness.launch.engine import Ended, Engine
from harness.launch.local import Local, LocalAgent
from harness.outcome import Status, Verdict
from harness.protocol import Deadlines, LaunchSpec
from harness.record import (
    SCHEMA,
    Described,
    LaunchRecord,
    LaunchStatus,
    Purpose,
    RankRecord,
    RunRecord,
    load,
    load_samples,
    save,
)
from harness.spec import Arm, CaseSpec, Device, Plan, Role
from harness.thresholds import Threshold
from harness.units import rate

POLL_GPUS_S = 1.0
#: FLOP/s of a slow CPU core, for deadlines only.
SLOW_FLOPS = 5e9
#: Launches that a plan still to come is reckoned with: 4 blocks of both orders over 4 arms.
MIN_LAUNCHES_TO_COME = 32


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run is, for whoever draws it."""

    plan: str
    arm: str
    purpose: Purpose
    launch: int
    num_launches: int
    step: int
    num_steps: int
    elapsed_s: float
    left_s: float | None
    last: str


class Progress(Protocol):
    """Whoever shows the run while it goes on."""

    def show(self, moment: Moment) -> None:
        """Called several times a second."""

    def note(self, text: str) -> None:
        """One line worth keeping."""

    def clear(self) -> None:
        """Leave the screen as it was."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made: never identity, all recorded."""

    results: Path
    engine: str = "local"
    budget_s: float | None = None
    tune_loop_thread: bool = True
    argv: tuple[str, ...] = ()


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
        self.machine = machine.detect()
        self.thresholds = tuple(thresholds)
        self.began = time.monotonic()
        self.before_s = 0.0
        now = datetime.datetime.now(datetime.UTC)
        self.started_at = now.isoformat(timespec="seconds")
        self.run = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.plans: list[Plan] = []
        self.described: dict[str, Described] = {}
        self.launches: list[LaunchRecord] = []
        self.notes = [
            f"{f.check}: {f.text}" for f in doctor.examine() if f.level is not doctor.Level.OK
        ]
        self.waiting = 0  # plans that are still to come
        self.num_launches = 0
        self._engine: Engine = engines.make(catalogue.get("engines", settings.engine))
        self._agent = self._engine.agent if isinstance(self._engine, Local) else LocalAgent()
        self._polls: list[list[dict[str, Json]]] = []
        self._last_poll = 0.0
        self._done: dict[str, tuple[Verdict, ...]] = {}

    @property
    def folder(self) -> Path:
        """Where this run is written."""
        return self.settings.results / "runs" / self.machine.hardware_class / self.run

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on this run, over all its sittings."""
        return self.before_s + time.monotonic() - self.began

    def resume(self, folder: Path) -> None:
        """Go on with an interrupted run: whole blocks are kept, a half-measured one is dropped."""
        old = load(folder)
        if old.complete:
            raise RecordError(
                "this run is complete", where=str(folder), fix=f"scaleproof report {folder}"
            )
        if old.machine.hardware_class != self.machine.hardware_class:
            raise RecordError(
                f"was measured on {old.machine.hardware_class}", where=str(folder),
                expected=self.machine.hardware_class, fix="scaleproof run CASE",
            )  # fmt: skip
        self.run, self.started_at, self.before_s = old.run, old.started_at, old.elapsed_s
        self.described, self.notes = dict(old.described), list(old.notes)
        self.plans, self.thresholds = list(old.plans), old.thresholds
        self.launches, repeated = contrasts.carried_over(old)
        if repeated:
            self.notes.append(f"resumed: {repeated} launches of an unfinished block repeated")

    def announce(self, plans: Sequence[Plan]) -> None:
        """Enter plans in the record before they are measured, so that none is lost."""
        known = {p.hash for p in self.plans}
        self.plans += [p for p in plans if p.hash not in known]
        self.waiting = sum(p.hash not in self._done for p in self.plans)

    def warm(self) -> None:
        """Start the agent now: it imports torch while we go on."""
        self._agent.start()

    def describe(self, cases: Sequence[CaseSpec]) -> None:
        """Ask the agent about cases that are new."""
        unknown = list({c.hash: c for c in cases if c.hash not in self.described}.values())
        if unknown:
            answers = self._agent.describe([(c, self.catalogue.files(c)) for c in unknown])
            self.described.update({c.hash: a for c, a in zip(unknown, answers, strict=True)})

    def measure(self, plan: Plan) -> tuple[Verdict, ...]:
        """The plan's verdicts; measured at the first call, looked up ever after."""
        if plan.hash in self._done:
            return self._done[plan.hash]
        self.announce([plan])
        self.waiting -= 1
        try:
            self.describe([a.case for a in plan.arms])
            arms = self._check(plan)
            self._blocks(plan, arms)
        except BaseException:
            self.save(complete=False)
            raise
        self._done[plan.hash] = self._verdicts(plan)
        self.save(complete=False)
        return self._done[plan.hash]

    def record(self, *, complete: bool) -> RunRecord:
        """The run so far."""
        bare = RunRecord(
            schema=SCHEMA,
            run=self.run,
            started_at=self.started_at,
            complete=complete,
            machine=self.machine,
            software=machine.software(),
            settings={
                "engine": self.settings.engine,
                "budget_s": str(self.settings.budget_s),
                "tune_loop_thread": str(self.settings.tune_loop_thread),
                "argv": " ".join(self.settings.argv),
            },
            environment=machine.environment(),
            plans=tuple(self.plans),
            described=dict(self.described),
            launches=tuple(self.launches),
            thresholds=self.thresholds,
            notes=tuple(self.notes),
            elapsed_s=self.elapsed_s,
        )
        return dataclasses.replace(bare, verdicts=verdict.verdicts(bare))

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """Verdicts of the plans that were measured to their end."""
        return tuple(v for found in self._done.values() for v in found)

    def save(self, *, complete: bool) -> RunRecord:
        """Write the run down, whole or not at all."""
        record = self.record(complete=complete)
        save(record, self.folder)
        return record

    def close(self) -> None:
        """Stop the engine and the agent."""
        self._engine.close()
        self._agent.close()

    def _check(self, plan: Plan) -> list[Arm]:
        """Gate every case that can run; the arms that are worth timing."""
        usable = []
        failed: dict[str, bool] = {
            x.case: verdict.gate_failure(x) is not None
            for x in self.launches
            if x.purpose is Purpose.GATE
        }
        for arm in plan.arms:
            answer = self.described[arm.case.hash]
            if (
                answer.error
                or answer.unsupported
                or not verdict.fits(answer, arm.case, self.machine)
            ):
                continue
            if arm.case.hash not in failed:
                launch = self._launch(plan, arm, Purpose.GATE, block=-1, turn=-1)
                self.launches.append(launch)
                problem = verdict.gate_failure(launch)
                failed[arm.case.hash] = problem is not None
                if problem is not None and arm.role is not Role.CONTROL:
                    self.progress.note(f"{arm.case.id}: {problem}")
            if not failed[arm.case.hash]:
                usable.append(arm)
        needed = {
            name
            for c in plan.contrasts
            if {c.subject, *c.baseline} <= {a.name for a in usable}
            for name in (c.subject, *c.baseline)
        }
        return [a for a in usable if a.name in needed]

    def _blocks(self, plan: Plan, arms: Sequence[Arm]) -> None:
        """Time the arms in blocks until every verdict is decided, or the blocks or time are up."""
        if not arms:
            return
        protocol = plan.protocol
        timed = [x for x in self.launches if x.plan == plan.hash and x.purpose is Purpose.TIMED]
        if not all(contrasts.usable(x) for x in timed):
            return  # a resumed plan that had failed
        have = {x.block for x in timed}
        block_s = 0.0
        for block in range(protocol.max_blocks):
            if block in have:
                continue
            if block >= protocol.min_blocks and (self._decided(plan) or self._spent(block_s)):
                return
            began = time.monotonic()
            order = list(arms)
            random.Random(f"{protocol.seed}-{block}").shuffle(order)
            for turn, arms_in_turn in ((2 * block, order), (2 * block + 1, order[::-1])):
                for arm in arms_in_turn:
                    launch = self._launch(plan, arm, Purpose.TIMED, block=block, turn=turn)
                    self.launches.append(launch)
                    if launch.status is not LaunchStatus.OK or launch.wrong:
                        problem = launch.wrong[0] if launch.wrong else verdict.blame(launch)
                        self.progress.note(f"{arm.case.id}: {problem}")
                        return
            self.save(complete=False)
            block_s = time.monotonic() - began

    def _verdicts(self, plan: Plan) -> tuple[Verdict, ...]:
        found = self.record(complete=True).verdicts
        return tuple(v for v in found if v.plan == plan.hash)

    def _decided(self, plan: Plan) -> bool:
        """Whether no verdict of the plan is open any more."""
        return Status.INCONCLUSIVE not in {v.status for v in self._verdicts(plan)}

    def _spent(self, block_s: float) -> bool:
        """Whether another block would eat into what the plans still to come need."""
        if self.settings.budget_s is None:
            return False
        timed = [x for x in self.launches if x.purpose is Purpose.TIMED]
        mean_s = sum(x.wall_s for x in timed) / len(timed)
        needed = self.waiting * mean_s * MIN_LAUNCHES_TO_COME
        return self.elapsed_s + block_s + needed > self.settings.budget_s

    def _launch(
        self, plan: Plan, arm: Arm, purpose: Purpose, *, block: int, turn: int
    ) -> LaunchRecord:
        """One world of fresh processes, and what came of it."""
        self.num_launches += 1
        case, protocol = arm.case, plan.protocol
        label = "gate" if purpose is Purpose.GATE else f"t{turn:02}"
        name = f"{plan.hash[:6]}-{label}-{arm.name.strip('@')}-{self.num_launches:04}"
        out = self.folder / "launches" / name
        out.mkdir(parents=True, exist_ok=True)
        spec = LaunchSpec(
            launch=name,
            purpose=purpose,
            case=case,
            twin=self.catalogue.twin(case),
            steps=protocol.steps,
            cut=protocol.cut,
            out=str(out.resolve()),
            files=self.catalogue.files(case),
            draw=random.Random(f"{protocol.seed}-{arm.name}-{turn}").randrange(2**31),
            tune_loop_thread=self.settings.tune_loop_thread,
            deadlines=self._deadlines(case),
        )
        began_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        began = time.monotonic()
        self._polls = []
        ended = self._engine.launch(spec, lambda: self._tick(plan, arm, spec))
        wall_s = time.monotonic() - began
        return self._assemble(spec, plan, arm, ended, block, turn, began_at, wall_s)

    def _deadlines(self, case: CaseSpec) -> Deadlines:
        """Silence that no healthy step of this case lasts, by its FLOPs at a slow core's rate."""
        usual, described = Deadlines(), self.described[case.hash]
        if described.facts is None or described.expected is None:
            return usual
        flops = described.facts.flops_per_sample * described.expected.global_batch
        step_s = flops / case.world_size / (SLOW_FLOPS if case.device is Device.CPU else 1e13)
        return dataclasses.replace(
            usual,
            step_s=max(usual.step_s, 10 * step_s),
            first_step_s=max(usual.first_step_s, 20 * step_s),
            collective_s=max(usual.collective_s, 10 * step_s),
        )

    def _assemble(
        self,
        spec: LaunchSpec,
        plan: Plan,
        arm: Arm,
        ended: Ended,
        block: int,
        turn: int,
        began_at: str,
        wall_s: float,
    ) -> LaunchRecord:
        """Read what the ranks left and derive the launch's figures."""
        out = Path(spec.out)
        cause = failure.attribute(ended.ranks)
        ranks = []
        for end in ended.ranks:
            path = out / f"rank{end.rank}.json"
            if path.is_file():
                ranks.append(from_doc(RankRecord, json.loads(path.read_text())))
        launch = LaunchRecord(
            launch=spec.launch,
            purpose=spec.purpose,
            plan=plan.hash,
            arm=arm.name,
            case=arm.case.hash,
            block=block,
            turn=turn,
            started_at=began_at,
            wall_s=wall_s,
            agent=ended.agent,
            engine=self.settings.engine,
            status=LaunchStatus.OK if cause is None else LaunchStatus.FAILED,
            cause=cause,
            ranks=tuple(ranks),
            gpus=nvml.summarise(self._polls),
        )
        if cause is not None or spec.purpose is Purpose.GATE:
            return launch
        samples = [load_samples(self.folder, spec.launch, r) for r in ranks]
        expected = self.described[arm.case.hash].expected
        assert expected is not None
        wrong = derive.wrong(arm.case, expected, ranks, samples, spec.cut)
        return dataclasses.replace(
            launch,
            wrong=wrong,
            steps=derive.steps(samples, spec.cut) if samples else None,
            consumed=derive.consumed(samples, spec.cut) if samples else 0,
            growth=derive.growth(samples, spec.cut) if samples else None,
            losses=derive.losses(samples),
        )

    def _tick(self, plan: Plan, arm: Arm, spec: LaunchSpec) -> None:
        """Show where we are; poll the devices now and then."""
        now = time.monotonic()
        if self.machine.num_gpus and now - self._last_poll > POLL_GPUS_S:
            self._polls.append(nvml.poll())
            self._last_poll = now
        step = 0
        with contextlib.suppress(FileNotFoundError, ValueError):  # not there yet, or no more
            reader = Beats(Path(spec.out) / "beats", spec.case.world_size)
            step = min(reader.read(r)[1] for r in range(spec.case.world_size))
        timed = [x for x in self.launches if x.plan == plan.hash and x.purpose is Purpose.TIMED]
        planned = 2 * plan.protocol.min_blocks * len(plan.arms)
        left = None
        if timed:
            mean_s = sum(x.wall_s for x in timed) / len(timed)
            left = (
                mean_s * max(0, planned - len(timed)) + self.waiting * mean_s * MIN_LAUNCHES_TO_COME
            )
        last = ""
        if timed and (seen := contrasts.quantity(timed[-1], "throughput")) is not None:
            last = f"{rate(seen)} samples/s"
        self.progress.show(
            Moment(
                plan=plan.name,
                arm=arm.case.id,
                purpose=spec.purpose,
                launch=len(timed) + 1,
                num_launches=max(planned, len(timed) + 1),
                step=step,
                num_steps=spec.steps,
                elapsed_s=self.elapsed_s,
                left_s=left,
                last=last,
            )
        )
