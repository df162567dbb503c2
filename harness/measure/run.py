"""A run: a record that is still being measured, and the code that resumes an interrupted one."""

import datetime
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.analysis.judging import contrast_data, verdicts
from harness.analysis.verify import misfigured
from harness.base import files
from harness.base.documents import Json
from harness.base.errors import RecordError
from harness.cases import (
    Arm,
    Catalogue,
    Contrast,
    Plan,
    Settings,
    Site,
    Statistic,
    Threshold,
    Window,
)
from harness.host import doctor, environment, machine
from harness.host.admission import Finding
from harness.host.environment import changes_speed, recorded
from harness.host.machine import Machine, software
from harness.measure.bench import mean_wall_s
from harness.measure.progress import uninterrupted
from harness.record import SCHEMA, Block, Described, LaunchRecord, Purpose, Row, RunRecord, Trial
from harness.record.chain import STATED, Chain, Kind, bodies
from harness.record.fabric import Suspects
from harness.record.launch import FLAKES, REPEATED, STALLS, num_again
from harness.record.recovery import FaultedTraining
from harness.record.store import load, save

#: Kinds of catalogue entries whose available names are recorded.
_OFFERED = ("strategies", "models", "compressors")


class Run:
    """A run: its measurements so far and their environment.

    ``queued_s`` returns the seconds that the run has waited in a queue.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        results: Path,
        thresholds: Sequence[Threshold],
        queued_s: Callable[[], float],
    ) -> None:
        self.settings = settings
        self._results = results
        self._catalogue = catalogue
        self._queued_s = queued_s
        self.machine = machine.detect()
        self.software = {**machine.software(), **machine.suite(Path.cwd())}
        self.environment: Mapping[str, str] = environment.recorded()
        self.nodes = tuple[machine.Machine, ...]()
        now = datetime.datetime.now(datetime.UTC)
        self.name = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.started_at = now.isoformat(timespec="seconds")
        self._before_s = 0.0
        self._began = time.monotonic()
        self.plans = list[Plan]()
        self.described = dict[str, Described]()
        self.launches = list[LaunchRecord]()
        self.blocks = list[Block]()
        self.windows: dict[str, dict[str, Window]] = {}
        self.fabric = list[Row]()
        self.recoveries = list[Trial]()
        self.played = list[FaultedTraining]()
        self.out_of_time = list[str]()
        self.notes = doctor.notes()
        self.admission: tuple[Finding, ...] = ()
        self.launch_sd: float | None = None
        self.setups: Mapping[str, Mapping[str, str]] = {}
        self.suspects: Suspects | None = None
        self.facts: Mapping[str, Mapping[str, str]] = {self.machine.host: machine.facts()}
        self._chain: Chain | None = None
        self._opened: Path | None = None
        self.judge_by(thresholds)

    @property
    def folder(self) -> Path:
        """The folder of the run. A resumed run keeps the folder that it was opened in."""
        return self._opened or self._results / "runs" / self.machine.hardware_class / self.name

    @property
    def data_seed(self) -> int:
        """The seed of the order of samples. It follows from the run's random name, so nobody can
        predict it.
        """
        return int(hashlib.sha256(self.name.encode()).hexdigest()[:7], 16)

    @property
    def elapsed_s(self) -> float:
        """Seconds spent on this run, including those before interruptions, but not in a queue."""
        return self._before_s + time.monotonic() - self._began - self._queued_s()

    def begun_at(self, at: str, before_s: float) -> None:
        """Set the start time (ISO 8601) of the run and the seconds that were measured before."""
        self.started_at = at
        self._before_s = before_s

    def judge_by(self, thresholds: Sequence[Threshold]) -> None:
        """Set the thresholds of this run; in strict mode each threshold applies to the
        worst pair.
        """
        self.thresholds = tuple(
            replace(threshold, statistic=Statistic.WORST) if self.settings.strict else threshold
            for threshold in thresholds
        )

    def resume(self, folder: Path) -> None:
        """Continue an interrupted run with all of its measurements."""
        self._chain = Chain(folder)
        old = unfinished(folder, self.machine)
        self._chain.reopen()
        self._opened = folder
        self.name = old.run
        self.started_at = old.started_at
        self._before_s = old.elapsed_s
        self.described = dict(old.described)
        self.environment = old.environment
        self.notes = list(old.notes)
        self.plans = list(old.plans)
        self.thresholds = old.thresholds
        self.windows = {plan: dict(windows) for plan, windows in old.windows.items()}
        self.admission = old.admission
        self.launch_sd = old.launch_sd
        self.launches = list(old.launches)
        self.fabric = list(old.fabric)
        self.recoveries = list(old.recoveries)
        self.blocks = list(old.blocks)
        self.played = list(old.played)
        self.setups = dict(old.setups)
        self.suspects = old.suspects
        self.facts = old.facts
        known = {launch.launch for launch in self.launches}
        there = {path.name for path in (folder / "launches").glob("*") if path.is_dir()}
        self._link(Kind.SITTING, {"machine": self.machine, "cut": sorted(there - known)})

    def announce(self, plans: Sequence[Plan]) -> None:
        """Enter plans in the record before they are measured, so that no plan is missing in it."""
        if self._chain is not None:
            self._chain.refuse_failed()
        known = {plan.hash for plan in self.plans}
        self.plans += [plan for plan in plans if plan.hash not in known]

    @uninterrupted
    def seal(self) -> None:
        """Write the facts of the run to the chain before anything is launched.

        Later calls add new plans, and the descriptions of their cases.
        """
        if self._chain is None:
            self._chain = Chain(self.folder)
        if first := not self._chain.links:
            files.refuse_full(self.folder, begun=False)
            self._chain.add(Kind.SEALED, _sealed(self))
        announced = {body["hash"] for body in bodies(self._chain.links, Kind.PLAN)}
        for plan in self.plans:
            if plan.hash not in announced:
                self._chain.add(Kind.PLAN, {"hash": plan.hash, "plan": plan})
        known = {case for body in bodies(self._chain.links, Kind.DESCRIBED) for case in body}
        if new := {c: answer for c, answer in self.described.items() if c not in known}:
            self._chain.add(Kind.DESCRIBED, new)
        if first:
            save(self.bare(complete=False), self.folder)

    @uninterrupted
    def _link(self, kind: Kind, *bodies: object) -> None:
        """Append entries to the chain.

        Before that, append the facts and plans that must precede every launch, if they are missing.
        """
        self.seal()
        assert self._chain is not None
        self._chain.add(kind, *bodies)

    @uninterrupted
    def enter(self, launches: Sequence[LaunchRecord]) -> list[LaunchRecord]:
        """Enter concurrent launches that have ended; return them as recorded.

        If the host paused, all of them are marked to be timed again with the same placement. If
        one launch ended by a transient failure, such as a killed rank, all are marked to be
        repeated, because a single transient failure must not end a plan of a nightly run. The
        number of repetitions is limited. Launches that lost a node are always marked, because the
        loss of a node says nothing about the case.
        """
        plans = {launch.plan for launch in launches}
        before = [launch for launch in self.launches if launch.plan in plans]
        launches = self._flaked(_stalled(launches, before), before)
        self._link(Kind.LAUNCH, *launches)
        self.launches += launches
        return list(launches)

    def _flaked(
        self, launches: Sequence[LaunchRecord], before: Sequence[LaunchRecord]
    ) -> Sequence[LaunchRecord]:
        """Return the launches. If one had a transient failure, mark all of them to be repeated.

        Add a note about the failure to the run.
        """
        again = num_again(before, Purpose.FLAKED) < FLAKES
        passing = [launch for launch in launches if launch.passing and launch.cause is not None]
        repeated = all(launch.purpose in REPEATED for launch in launches)
        if not (passing and repeated and (again or all(launch.lost for launch in passing))):
            return launches
        for launch in passing:
            assert launch.cause is not None
            what_next = (
                "launched once more" if again else "its plan ends; --resume continues the plan"
            )
            self.notes.append(f"{launch.launch}: {launch.cause.message}; {what_next}")
        return [
            replace(launch, purpose=Purpose.FLAKED, intended=launch.purpose) for launch in launches
        ]

    @uninterrupted
    def begin(self, block: Block) -> None:
        """Enter a block before its first launch."""
        self._link(Kind.BLOCK, block)
        self.blocks.append(block)

    @uninterrupted
    def freeze(self, windows: Mapping[str, Mapping[str, Window]]) -> None:
        """Enter the windows of plans before the first launch that is judged."""
        if windows:
            self._link(Kind.WINDOWS, windows)
        self.windows |= {plan: dict(of_plan) for plan, of_plan in windows.items()}

    @uninterrupted
    def add_sweep(self, rows: Sequence[Row]) -> None:
        """Enter the results of one sweep."""
        self._link(Kind.SWEEP, rows)
        self.fabric += rows

    def add_broken_sweep(self, launch: str, why: str) -> None:
        """Enter a sweep that returned no rows, so that its number is accounted for."""
        self._link(Kind.BROKEN, {"launch": launch, "why": why})

    @uninterrupted
    def set_suspects(self, suspects: Suspects) -> None:
        """Enter the nodes that are slow or broken according to launches on pairs of nodes."""
        self._link(Kind.PAIRED, suspects)
        self.suspects = suspects

    @uninterrupted
    def add_interrupted(self, played: FaultedTraining) -> None:
        """Enter a training that faults interrupted."""
        self._link(Kind.PLAYED, played)
        self.played.append(played)

    @uninterrupted
    def add_trial(self, trial: Trial) -> None:
        """Enter the result of one recovery trial."""
        self._link(Kind.TRIAL, trial)
        self.recoveries.append(trial)

    def record(self, *, complete: bool) -> RunRecord:
        """Return the record of the run so far, with its verdicts."""
        bare = self.bare(complete=complete)
        return replace(bare, verdicts=verdicts.verdicts(bare))

    def bare(self, *, complete: bool = True) -> RunRecord:
        """Return the record of the run so far without verdicts. ``complete`` sets its field."""
        return _so_far(self, self._catalogue, self._chain.head if self._chain else "", complete)

    def keep(self) -> None:
        """Write to the chain the state that does not follow from the launches.

        A resumed run and readers of the record need it.
        """
        if self._chain is not None:
            self._link(Kind.STATE, _state(self.bare()))

    def release(self) -> None:
        """Release the lock of the run's folder, because this process measures nothing more."""
        if self._chain is not None:
            self._chain.release()

    @uninterrupted
    def save(self, *, complete: bool) -> RunRecord:
        """Write the record atomically and return it.

        The verdicts are computed before the end is entered into the chain, so that a process that
        is killed meanwhile leaves a run that can be resumed.
        """
        ended = _state(self.bare())
        seconds = {name: ended[name] for name in ("elapsed_s", "device_s")}
        record = replace(self.record(complete=complete), **seconds)
        if complete and self._chain is not None:
            self._link(Kind.ENDED, ended)
            record = replace(record, head=self._chain.head)
        try:
            save(record, self.folder)
        except (OSError, files.UnwrittenError):
            if complete and self._chain is not None:
                with suppress(OSError):
                    self._chain.reopen()
            raise
        return record

    def contrasts_of(self, plan: Plan) -> tuple[Contrast, ...]:
        """Return the contrasts of a plan that are judged by the thresholds of this run."""
        return contrast_data.judged_of(plan, self.thresholds, self.machine)

    def timed(self, plan: Plan) -> list[LaunchRecord]:
        """Return the timed launches of a plan, usable or not, of all attempts."""
        return [
            launch
            for launch in self.launches
            if launch.plan == plan.hash and launch.purpose is Purpose.TIMED
        ]

    def blocks_of(self, plan: Plan, attempt: int = 0) -> set[int]:
        """Return the numbers of the blocks of a plan that have timed launches."""
        return {launch.block for launch in self.timed(plan) if launch.attempt == attempt}

    def block_s(self, slots: Sequence[Sequence[Arm]]) -> float:
        """Return the predicted duration (s) of another block.

        Each element of ``slots`` lists the arms that run concurrently.
        """
        wall_s = mean_wall_s(self.launches)
        return 2 * sum(max(wall_s.get(arm.case.hash, 0.0) for arm in slot) for slot in slots)

    def in_time(self, more_s: float, limit_s: float | None) -> bool:
        """Return whether ``more_s`` seconds are left before ``limit_s``; always true without a
        limit.
        """
        return limit_s is None or self.elapsed_s + more_s <= limit_s


def _sealed(run: Run) -> Json:
    """Return the facts that are fixed before anything is launched."""
    return dict(
        run=run.name,
        schema=SCHEMA,
        started_at=run.started_at,
        settings=run.settings,
        machine=run.machine,
        software=run.software,
        admission=run.admission,
        environment=run.environment,
        thresholds=run.thresholds,
        facts=run.facts,
    )


def _state(record: RunRecord) -> Json:
    """Return the facts of a record that only the STATE links of the chain contain."""
    return {name: getattr(record, name) for name in STATED}


def _so_far(run: Run, catalogue: Catalogue, head: str, complete: bool) -> RunRecord:
    """Return the record of a run without verdicts. ``head`` is the head of its chain."""
    return RunRecord(
        schema=SCHEMA,
        run=run.name,
        started_at=run.started_at,
        complete=complete,
        machine=run.machine,
        software=run.software,
        settings=run.settings,
        environment=run.environment,
        plans=tuple(run.plans),
        described=dict(run.described),
        launches=tuple(run.launches),
        thresholds=run.thresholds,
        notes=tuple(run.notes),
        elapsed_s=run.elapsed_s,
        device_s=run.elapsed_s * sum(run.settings.nodes),
        windows={plan: dict(windows) for plan, windows in run.windows.items()},
        nodes=run.nodes,
        fabric=tuple(run.fabric),
        recoveries=tuple(run.recoveries),
        admission=run.admission,
        launch_sd=run.launch_sd,
        out_of_time=tuple(run.out_of_time),
        blocks=tuple(run.blocks),
        setups=dict(run.setups),
        suspects=run.suspects,
        played=tuple(run.played),
        facts=run.facts,
        head=head,
        offered={kind: tuple(catalogue.entries[kind]) for kind in _OFFERED},
    )


def _stalled(
    launches: Sequence[LaunchRecord], before: Sequence[LaunchRecord]
) -> Sequence[LaunchRecord]:
    """Return the launches. If the host paused during a timed launch, mark all to be timed again.

    Return the launches unchanged if any of them is not usable for another reason.
    """
    timed = all(launch.purpose is Purpose.TIMED for launch in launches)
    stood_still = any(launch.stood_still for launch in launches)
    well = all(launch.usable or launch.stood_still for launch in launches)
    if not (timed and stood_still and well) or num_again(before, Purpose.STALLED) >= STALLS:
        return launches
    return [replace(launch, purpose=Purpose.STALLED) for launch in launches]


def unfinished(folder: Path, machine: Machine) -> RunRecord:
    """Return the record of an interrupted run of this machine, to be resumed.

    Raise RecordError if the run is complete or was edited, if another machine or version measured
    it, or if its metrics do not follow from its samples.
    """
    old = load(folder)
    if old.complete:
        raise RecordError(
            "this run is complete", where=str(folder), fix=f"scaleproof report {folder}"
        )
    if old.schema != SCHEMA:
        raise RecordError(
            f"the run was started by an older version (schema {old.schema})",
            where=str(folder),
            expected=f"schema {SCHEMA}",
            fix="scaleproof run CASE",
        )
    if old.machine.hardware_class != machine.hardware_class:
        raise RecordError(
            f"the run was measured on {old.machine.hardware_class}",
            where=str(folder),
            expected=machine.hardware_class,
            fix="scaleproof run CASE",
        )
    if (reason := next(_edited(old), None)) is not None:
        raise RecordError(
            f"{reason} since the run was begun: new launches would train differently",
            where=str(folder),
            expected="the files and versions that the run was begun with",
            fix="scaleproof run CASE",
        )
    if reason := misfigured(old, folder):
        raise RecordError(
            f"NOT VERIFIED: {reason}: new launches would be judged together with the recorded ones",
            where=str(folder),
            expected="launches whose metrics follow from their samples",
            fix=f"scaleproof verify {folder}",
        )
    return old


def _edited(run: RunRecord) -> Iterator[str]:
    """Yield a sentence for each user file, version or variable that has changed since the recorded
    launches.
    """
    now = software()
    for name in ("torch", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        before = run.software.get(name, "")
        if before and before != now.get(name, ""):
            yield f"{name} is {now.get(name, 'gone')}, and was {before}"
    environment_now = {key: value for key, value in recorded().items() if changes_speed(key)}
    there = {key: value for key, value in run.environment.items() if changes_speed(key)}
    for name in sorted(environment_now.keys() | there.keys()):
        if environment_now.get(name) != there.get(name):
            before = there.get(name, "not set")
            yield f"{name} is {environment_now.get(name, 'not set')}, and was {before}"
    ranks = (rank for launch in run.launches for rank in launch.ranks)
    sources = {name: digest for rank in ranks for name, digest in (rank.sources or {}).items()}
    if sources.get("scaleproof", files.digest_of_package()) != files.digest_of_package():
        yield "scaleproof was changed"
    for name, digest in sources.items():
        here_now = files.digest_of_file(Path(run.settings.folder or ".") / name)
        # The file does not exist on this machine if a rank loaded it on another node or from the
        # private copy of a launch.
        if name.endswith(".py") and here_now not in ("", digest):
            yield f"{name} was edited"


def where(run: RunRecord) -> Site:
    """Return the site on which a run was begun; a resumed run is measured on the same site."""
    case = max((arm.case for plan in run.plans for arm in plan.arms), key=lambda c: c.world_size)
    asked = run.settings
    return Site(device=asked.device, backend=case.backend, nodes=asked.nodes, engine=asked.engine)
