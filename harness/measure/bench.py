"""The Launcher: one world of fresh processes for one arm, and the LaunchRecord that it leaves."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.samples import figures as derive
from harness.analysis.timeline.profiled import budget_of, talks
from harness.base import files
from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError, ScaleproofError
from harness.host import machine, nvml
from harness.launch import causes
from harness.launch.deploy import Worlds, open_worlds
from harness.launch.engine import Ended, Watch, Where
from harness.launch.wire.messages import Deadlines, LaunchSpec, Node, Restart
from harness.record import Described, LaunchRecord, LaunchStatus, Purpose, RankRecord, fabric
from harness.record.fabric import Row
from harness.record.store import load_samples, write_text
from harness.spec import Arm, CaseSpec, Device, Plan, Window
from harness.spec.catalogue import Catalogue

#: Seconds between readings of the devices, of a timed and of a profiled launch.
POLL_GPUS_S, POLL_PROFILED_S = 1.0, 0.1
#: FLOP/s of a slow CPU core, for deadlines only.
SLOW_FLOPS = 5e9


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which launch is wanted: of what, what for, and where in the protocol it stands."""

    plan: Plan
    arm: Arm
    purpose: Purpose
    window: Window
    block: int = -1
    turn: int = -1
    attempt: int = 0


class Launcher:
    """Owns the engine and the agent that describes cases; launches one world at a time."""

    def __init__(
        self,
        catalogue: Catalogue,
        engine: str,
        where: Where,
        *,
        tune_loop_thread: bool,
        poll_gpus: bool,
    ) -> None:
        self.catalogue, self.engine_name = catalogue, engine
        self.tune_loop_thread, self.poll_gpus = tune_loop_thread, poll_gpus
        self._worlds: Worlds = open_worlds(catalogue.get("engines", engine), where)
        self._polls: list[list[dict[str, Json]]] = []
        self._last_poll = 0.0
        self._count = 0

    def warm(self) -> None:
        """Start the agents now: they import torch while we go on."""
        self._worlds.start()

    def ready(self, watch: Watch = lambda here, wanted, says: None) -> None:
        """Wait until every agent is there, those in place of lost ones too."""
        self._worlds.ready(watch)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The machines that ranks run on; waits for their agents."""
        return self._worlds.nodes

    @property
    def queued_s(self) -> float:
        """Seconds that the agents waited in a queue."""
        return self._worlds.queued_s

    @property
    def notes(self) -> list[str]:
        """What the engine has to say of itself, for the record."""
        out = [f"engine: {self.queued_s:.0f} s in the queue"] if self.queued_s >= 1 else []
        here = machine.backend_environment()
        for number, node in enumerate(self.nodes):
            for name, value in node.environment.items():
                if name not in here and not name.endswith("_IFNAME"):
                    out.append(
                        f"node {number} ({node.machine.host}) also sets {name}={value}: part of"
                        " what was measured, not of the case"
                    )
        return out

    def describe(self, cases: Sequence[CaseSpec]) -> list[Described]:
        """Ask an agent what each case will do."""
        return self._worlds.describe([(c, self.catalogue.files(c)) for c in cases])

    def close(self) -> None:
        """Stop the engine and its agents."""
        self._worlds.close()

    def launch(
        self,
        order: Order,
        folder: Path,
        described: Described,
        on_step: Callable[[int], None],
    ) -> LaunchRecord:
        """One world, from its start to its record. ``folder`` is the run's.

        Where the cause of a failure is not sure it is launched once more, under torch's own check
        of every collective; that launch counts for nothing else.
        """
        self._check_engine(order.arm.case)
        with files.told(folder):
            found = self._launch(order, folder, described, on_step, detailed=False)
        if found.cause is not None:
            files.refuse_full(folder)
        if found.cause is None or found.cause.sure or found.cause.kind == "node":
            return found
        again = self._launch(order, folder, described, on_step, detailed=True).cause
        if again is None or not again.sure or again.kind != "collective":
            return found  # torch's own check can crash a rank: only what it says itself counts
        message = f"{again.message} (seen when launched again with detailed debugging)"
        return dataclasses.replace(found, cause=dataclasses.replace(again, message=message))

    def sweep(
        self, case: CaseSpec, folder: Path, hosts: tuple[int, ...] = (), only: str = ""
    ) -> list[Row]:
        """Sweep the collectives of a world once; LaunchError with the cause if it breaks."""
        self._check_engine(case)
        self._count += 1
        name = f"fabric-{case.world.replace('+', '-')}-{self._count:04}"
        out = folder / "launches" / name
        out.mkdir(parents=True, exist_ok=True)
        spec = LaunchSpec(
            launch=name, purpose=Purpose.FABRIC, case=case, twin=case, steps=0, cut=0,
            out=str(out.resolve()), files={}, draw=0, hosts=hosts, only=only,
            tune_loop_thread=self.tune_loop_thread,
        )  # fmt: skip
        ended = self._run(spec, lambda step: None)
        cause = causes.attribute(ended.ranks, ended.unreachable)
        if cause is not None:
            raise LaunchError(
                f"the fabric sweep broke: rank {cause.rank}: {cause.message}", where=case.world,
                expected="collectives that work", fix=f"less {out}/rank{cause.rank}.log",
            )  # fmt: skip
        rows = json.loads((out / "rank0.json").read_text())
        label = fabric.label(case.network)
        found = (from_doc(Row, r) for r in rows)
        return [dataclasses.replace(r, launch=self._count, network=label) for r in found]

    def restart(
        self, case: CaseSpec, folder: Path, plan: Restart, steps: int, deadlines: Deadlines
    ) -> tuple[Ended, Path]:
        """Train with a checkpoint, broken or gone on with; the folder that the ranks wrote to."""
        self._check_engine(case)
        self._count += 1
        out = folder / "launches" / f"recovery-{self._count:04}"
        out.mkdir(parents=True, exist_ok=True)
        spec = LaunchSpec(
            launch=out.name, purpose=Purpose.RECOVERY, case=case, twin=case, steps=steps, cut=0,
            out=str(out.resolve()), files=self.catalogue.files(case), draw=0, restart=plan,
            tune_loop_thread=self.tune_loop_thread, deadlines=deadlines,
        )  # fmt: skip
        return self._run(spec, lambda step: None), out

    def _run(self, spec: LaunchSpec, tick: Callable[[int], None]) -> Ended:
        """One world; how each rank of a broken one ended is kept beside what it left."""
        ended = self._worlds.launch(spec, tick)
        if not all(end.finished for end in ended.ranks):
            write_text(Path(spec.out) / "ends.json", json.dumps(to_doc(ended.ranks), indent=1))
        return ended

    def _launch(
        self,
        order: Order,
        folder: Path,
        described: Described,
        on_step: Callable[[int], None],
        *,
        detailed: bool,
    ) -> LaunchRecord:
        self._count += 1
        plan, arm, case = order.plan, order.arm, order.arm.case
        label = str(order.purpose)
        if order.purpose in (Purpose.TIMED, Purpose.PROFILE):
            letters = "tc" if order.purpose is Purpose.TIMED else "pq"
            label = f"{letters[order.attempt]}{order.turn:02}"
        name = f"{plan.hash[:6]}-{label}-{arm.name.strip('@')}-{self._count:04}"
        out = folder / "launches" / name
        out.mkdir(parents=True, exist_ok=True)
        draw = f"{plan.protocol.seed}-{arm.name}-{order.purpose}-{order.attempt}-{order.turn}"
        spec = LaunchSpec(
            launch=name,
            purpose=order.purpose,
            case=case,
            twin=self.catalogue.twin(case),
            steps=order.window.steps,
            cut=order.window.cut,
            profiled=order.window.profiled,
            out=str(out.resolve()),
            files=self.catalogue.files(case),
            draw=random.Random(draw).randrange(2**31),
            detailed=detailed,
            tune_loop_thread=self.tune_loop_thread,
            deadlines=_deadlines(case, described),
        )
        began_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        began = time.monotonic()
        self._polls = []
        ended = self._run(spec, lambda step: self._tick(spec, step, on_step))
        wall_s = time.monotonic() - began
        return self._assemble(order, spec, folder, ended, described, began_at, wall_s)

    def _tick(self, spec: LaunchSpec, step: int, on_step: Callable[[int], None]) -> None:
        """Poll the devices now and then; pass on which step the slowest rank is at."""
        now = time.monotonic()
        every_s = POLL_PROFILED_S if spec.profiled else POLL_GPUS_S
        if self.poll_gpus and now - self._last_poll > every_s:
            self._polls.append(nvml.poll())
            self._last_poll = now
        on_step(step)

    def _check_engine(self, case: CaseSpec) -> None:
        """LaunchError if a case asks for links or stragglers that this engine does not make."""
        if case.slowed and self.engine_name == "torchrun":  # no agent of ours starts its ranks
            raise LaunchError(
                "--engine torchrun slows no rank down", where=case.id,
                expected="an engine with agents for stragglers", fix="--engine local",
            )  # fmt: skip
        if case.network and self.engine_name != "emulated":
            raise LaunchError(
                f"--engine {self.engine_name} shapes no links", where=case.id,
                expected="--engine emulated for emulated.* knobs", fix="--engine emulated",
            )  # fmt: skip

    def _assemble(
        self,
        order: Order,
        spec: LaunchSpec,
        folder: Path,
        ended: Ended,
        described: Described,
        began_at: str,
        wall_s: float,
    ) -> LaunchRecord:
        """Read what the ranks left and derive the launch's figures."""
        out = Path(spec.out)
        cause = causes.attribute(ended.ranks, ended.unreachable)
        ranks = []
        for end in ended.ranks:
            path = out / f"rank{end.rank}.json"
            if path.is_file():
                ranks.append(from_doc(RankRecord, json.loads(path.read_text())))
        launch = LaunchRecord(
            launch=spec.launch,
            purpose=spec.purpose,
            plan=order.plan.hash,
            arm=order.arm.name,
            case=order.arm.case.hash,
            block=order.block,
            turn=order.turn,
            attempt=order.attempt,
            started_at=began_at,
            wall_s=wall_s,
            agent=ended.agent,
            engine=self.engine_name,
            status=LaunchStatus.OK if cause is None else LaunchStatus.FAILED,
            cause=cause,
            ranks=tuple(ranks),
            gpus=nvml.summarise(self._polls),
        )
        if cause is not None or spec.purpose is Purpose.GATE:
            return launch
        samples = [load_samples(folder, spec.launch, r) for r in ranks]
        assert described.expected is not None
        figures = derive.figures(order.arm.case, described.expected, ranks, samples, spec.cut)
        launch = dataclasses.replace(launch, **vars(figures))
        if order.purpose is not Purpose.PROFILE:
            return launch
        if self._polls:
            write_text(out / "gpus.json", json.dumps([r for poll in self._polls for r in poll]))
        try:
            talking = talks(order.arm.case, described.expected)
            budget = budget_of(folder, spec.launch, ranks, spec.profiled, talking)
        except ScaleproofError as error:
            return dataclasses.replace(launch, wrong=(*launch.wrong, f"timeline: {error.what}"))
        perturbed = derive.perturbation(samples, order.window)
        return dataclasses.replace(launch, budget=budget, perturbation=perturbed)


def _deadlines(case: CaseSpec, described: Described) -> Deadlines:
    """Silence that no healthy step of this case lasts, by its FLOPs at a slow core's rate."""
    usual = Deadlines()
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


def mean_wall_s(launches: Sequence[LaunchRecord]) -> Mapping[str, float]:
    """Case hash -> what its launches took on average, timed ones if there are any."""
    out: dict[str, list[float]] = {}
    for purpose in (Purpose.PILOT, Purpose.TIMED):
        found: dict[str, list[float]] = {}
        for x in launches:
            if x.purpose is purpose:
                found.setdefault(x.case, []).append(x.wall_s)
        out |= found
    return {case: sum(v) / len(v) for case, v in out.items()}
