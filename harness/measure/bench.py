"""The Bench: starts one world of fresh processes for one arm and returns its LaunchRecord."""

import datetime
import errno
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.analysis.samples import bits, figures, references
from harness.analysis.timeline.close import budget_of, talks
from harness.base import files
from harness.base.documents import from_doc, to_doc
from harness.base.errors import LaunchError, RetryableError, ScaleproofError
from harness.cases import CaseSpec, Catalogue, Compiled, Device, Entry, Settings
from harness.cases.plan import HORIZON
from harness.host import copies, nvml
from harness.host.nvml import GpuWindow
from harness.launch import causes
from harness.launch.deploy import Fleets
from harness.launch.engine import Ended, Tick, Where
from harness.launch.wire.messages import (
    BEHIND,
    Bits,
    Break,
    Deadlines,
    Gate,
    LaunchSpec,
    Play,
    Refer,
    Script,
    Sweep,
    Task,
    Timed,
    Train,
    readings_file,
)
from harness.measure import claims
from harness.measure.order import Order
from harness.record import Described, LaunchRecord, LaunchStatus, Purpose, RankRecord, Row
from harness.record.fabric import label
from harness.record.launch import BEHIND as BEHIND_SLOT, PASSING
from harness.record.store import load_samples, write_text

#: The advice for a script that writes to a folder given by --data, which all launches use.
UNSHARED = "omit that --data option, and every launch gets a private copy"
#: The advice for a script that a read-only file system has stopped.
READ_ONLY = (
    "a launch may only change files in its copy of the script's folder: write to a relative path,"
    " omit --data for it, or allow it by --writes PATH"
)
#: FLOP/s of a slow CPU core. Only deadlines use it.
SLOW_FLOPS = 5e9
#: Characters that must not occur in the name of a launch, which is also the name of a folder.
_ODD = re.compile(r"[^A-Za-z0-9_.+-]+")
_USUAL = Deadlines()
#: Seconds that a rank may be silent while it compiles its blocks. All ranks compile concurrently.
COMPILING_S = 600.0
#: Deadlines of a user's script in seconds. They are long because imports, data loading, compilation
#: and an evaluation between steps may take long.
SCRIPTS = Deadlines(
    start_s=600.0, first_step_s=600.0, step_s=300.0, collective_s=300.0, meet_s=120.0, idle_s=40.0
)
#: Seconds for which a script may be silent however short the time budget is.
LEAST_SILENCE_S = 60.0


class Bench:
    """Owns the engine and its agents, and launches one or several worlds at a time.

    ``settings`` are the options of the run. They name the additional environments (setups) and the
    versions of the project in them.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        engine: Entry,
        where: Where,
        settings: Settings | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.engine = engine
        self._count = 0
        #: Seed of the order of samples; each run has its own.
        self.data_seed = 0
        self._shared: copies.Stamps = {}
        #: Broken sweeps: launch name -> reason. The caller that enters them in the record removes
        #: them.
        self.broken: dict[str, str] = {}
        self.settings = settings or Settings()
        self.collective_s = float(where.settings.get("collective_s", 0))
        self.fleets = Fleets(engine, where, dict(self.settings.setups))
        self.worlds = self.fleets.own

    def describe(self, cases: Sequence[CaseSpec]) -> list[Described]:
        """Ask an agent what each case will compute, send and hold.

        A checkout of another project version is described by an agent of that version. Cases of
        scripts get an empty description.
        """
        versions = dict(self.settings.checkouts)
        by_version: dict[str, list[CaseSpec]] = {}
        for case in (c for c in cases if not c.script):
            by_version.setdefault(case.setup if case.setup in versions else "", []).append(case)
        known: dict[str, Described] = {}
        for setup, asked in by_version.items():
            witnesses = {c.hash: claims.witness(c, self.catalogue) for c in asked}
            beside = [case for case in witnesses.values() if case is not None]
            every = list({case.hash: case for case in (*asked, *beside)}.values())
            answers = self.fleets.of(setup).describe([(c, self._files(c)) for c in every])
            by_hash = dict(zip((c.hash for c in every), answers, strict=True))
            for case in asked:
                witness = witnesses[case.hash]
                stated = None if witness is None else by_hash[witness.hash]
                answer = claims.of_files(case, by_hash[case.hash], stated, self.catalogue)
                known[case.hash] = claims.of_its_training(case, answer, self.catalogue)
        return [known.get(c.hash, Described()) for c in cases]

    def _files(self, case: CaseSpec) -> dict[str, str]:
        """Return the paths of a case's files in the environment (setup) of the case."""
        files = self.catalogue.files(case)
        return {kind: self.settings.placed(file, case.setup) for kind, file in files.items()}

    def launch(
        self, order: Order, folder: Path, described: Described, on_step: Callable[[int], None]
    ) -> LaunchRecord:
        """Launch one world and return its record. ``folder`` is the folder of the run."""
        return self.launch_together([order], folder, [described], on_step)[0]

    def launch_together(
        self,
        orders: Sequence[Order],
        folder: Path,
        described: Sequence[Described],
        on_step: Callable[[int], None],
    ) -> list[LaunchRecord]:
        """Launch several worlds concurrently, each at its placement, and return their records.

        If the cause of a failure is uncertain, the failed world is launched once more, alone, with
        torch's detailed check of every collective. This launch is used only to name the cause.
        """
        with files.writing_to(folder):
            records = self._launch(orders, folder, described, on_step)
        for i, record in enumerate(records[: len(orders)]):
            if (cause := record.cause) is None:
                continue
            files.refuse_full(folder)
            if cause.sure or cause.kind == "node":
                continue
            alone = replace(orders[i], behind=None)
            (looked,) = self._launch([alone], folder, described[i:], on_step, True)
            if (again := looked.cause) is None or not again.sure or again.kind != "collective":
                continue  # count only the message of torch's check, which can crash a rank
            message = f"{again.message} (seen when launched again with detailed debugging)"
            records[i] = replace(record, cause=replace(again, message=message))
        return records

    def sweep(self, case: CaseSpec, folder: Path, only: str = "") -> list[Row]:
        """Sweep the collectives of a world once, or ``only`` one of them.

        Raise LaunchError with the cause if the sweep breaks.
        """
        (rows,) = self.sweep_together([case], folder, [()], only)
        if isinstance(rows, LaunchError):
            raise rows
        return rows

    def sweep_together(
        self,
        cases: Sequence[CaseSpec],
        folder: Path,
        hosts: Sequence[tuple[int, ...]],
        only: str = "",
    ) -> list[list[Row] | LaunchError]:
        """Sweep several worlds concurrently, each on separate nodes.

        ``hosts`` are the nodes of each world; an empty tuple means the first nodes.
        """
        specs = []
        for case, of in zip(cases, hosts, strict=True):
            name = f"fabric-{case.world.replace('+', '-')}"
            spec = self._spec(name, case, folder, Sweep(only=only), hosts=of)
            specs.append(replace(spec, devices=(0,) * len(of)) if len(cases) > 1 else spec)
        ended = self._run_together(specs, lambda step: None)
        swept = [
            _swept(s, w, self.engine, self.catalogue) for s, w in zip(specs, ended, strict=True)
        ]
        for spec, rows in zip(specs, swept, strict=True):
            if isinstance(rows, LaunchError):
                self.broken[spec.launch] = rows.what
        return swept

    def train(
        self, case: CaseSpec, folder: Path, task: Train | Break | Play, deadlines: Deadlines
    ) -> tuple[Ended, Path]:
        """Run a training of the recovery feature.

        Return how the training ended, and the folder that its ranks wrote. The task is a training
        without faults (new or resumed from a checkpoint), a training with an injected fault, or the
        replay of a fault trace.
        """
        spec = self._spec("recovery", case, folder, task, deadlines=deadlines)
        return self._run(spec), Path(spec.out)

    def _spec(
        self,
        name: str,
        case: CaseSpec,
        folder: Path,
        task: Task,
        *,
        hosts: tuple[int, ...] = (),
        deadlines: Deadlines | None = None,
        detailed: bool = False,
    ) -> LaunchSpec:
        """Return the specification of the next launch, with a new folder for its files.

        Raise LaunchError if the case needs shaped links or stragglers that this engine does not
        provide.
        """
        option = f"--engine {self.engine.name}"
        facts = self.engine.engine
        if (case.slowed or case.slow_nodes) and not facts.slows_ranks:
            raise LaunchError(
                f"stragglers are not supported with {option}",
                where=case.id,
                expected="an engine whose agents start the ranks",
                fix="--engine local",
            )
        if (network := self.catalogue.network(case)) and not facts.shapes_links:
            raise LaunchError(
                f"{option} cannot shape links, but {network[0][0]} is set",
                where=case.id,
                expected="an engine that can shape links",
                fix=f"--engine {network[0][0].partition('.')[0]}",
            )
        out = self._folder(name, folder)
        return LaunchSpec(
            launch=out.name,
            case=case,
            out=str(out.resolve()),
            task=task,
            hosts=hosts,
            files={} if isinstance(task, Sweep) else self._files(case),
            detailed=detailed,
            deadlines=deadlines or _with_collective(_USUAL, self.collective_s),
        )

    def _folder(self, name: str, folder: Path) -> Path:
        """Create the numbered folder of the next launch in the folder of a run."""
        self._count += 1
        out = folder / "launches" / f"{name}-{self._count:04}"
        out.mkdir(parents=True, exist_ok=True)
        return out

    def count_on(self, folder: Path) -> None:
        """Continue the numbers of the launches in a run's folder, so that no number is reused."""
        there = [path.name.rpartition("-")[2] for path in (folder / "launches").glob("*")]
        self._count = max((int(number) for number in there if number.isdigit()), default=0)

    def _run(self, spec: LaunchSpec) -> Ended:
        """Launch one world and wait until it has ended."""
        return self._run_together([spec], lambda step: None)[0]

    def _run_together(self, specs: Sequence[LaunchSpec], tick: Tick) -> list[Ended]:
        """Launch worlds concurrently and wait until all have ended.

        If a world broke, write how each of its ranks ended to ``ends.json`` in the world's folder.
        """
        ended = self.fleets.of(specs[0].case.setup).launch_together(specs, tick)
        for spec, world in zip(specs, ended, strict=True):
            if not all(end.finished for end in world.ranks):
                write_text(Path(spec.out) / "ends.json", json.dumps(to_doc(world.ranks), indent=1))
        return ended

    def _launch(
        self,
        orders: Sequence[Order],
        folder: Path,
        described: Sequence[Described],
        on_step: Callable[[int], None],
        detailed: bool = False,
    ) -> list[LaunchRecord]:
        """Launch worlds concurrently. Return their records, then the records of their profiles."""
        answered = list(zip(orders, described, strict=True))
        first = orders[0].script
        if first is not None and not self._shared:
            self._shared = copies.shared_stamps(Path(first.folder), first.data)
        specs = [self._spec_of(order, folder, answer, detailed) for order, answer in answered]
        slot = specs[0].launch if len(specs) > 1 else ""
        began_at = datetime.datetime.now(datetime.UTC)
        ended = self._run_together(specs, on_step)
        worlds = [
            replace(_record(order, spec, world), slot=slot, started_at=_at(began_at))
            for order, spec, world in zip(orders, specs, ended, strict=True)
        ]
        left, profiles = [], []
        for order, spec, launch in zip(orders, specs, worlds, strict=True):
            profile = self._behind(order, spec, launch, began_at)
            left.append(launch if profile is None else _without(launch, profile))
            profiles += [] if profile is None else [profile]
        behind = [order.behind for order in orders if order.behind is not None]
        records = figured(orders, left, folder, described)
        if len(profiles) == len(behind):
            answers = [a for order, a in answered if order.behind is not None]
            records += figured(behind, profiles, folder, answers)
        return [
            replace(
                launch,
                engine=self.engine.name,
                wrong=(*launch.wrong, *self._written(orders[0].script)),
            )
            for launch in records
        ]

    def _behind(
        self,
        order: Order,
        spec: LaunchSpec,
        launch: LaunchRecord,
        began_at: datetime.datetime,
    ) -> LaunchRecord | None:
        """Return the record of the steps that were profiled after the timed window.

        Move the files of these steps to a separate folder. Return None if the order requests no
        profile, or if the world did not reach these steps.
        """
        if order.behind is None or len(launch.ranks) < order.arm.case.world_size:
            return None
        out = self._folder(_name(order.behind), Path(spec.out).parents[1])
        for file in (*Path(spec.out).glob(f"rank*.{BEHIND}*"), *Path(spec.out).glob("gpus.json")):
            file.rename(out / file.name.replace(f".{BEHIND}", ".", 1))
        ranks = _left_by([rank.rank for rank in launch.ranks], out)
        took_s = max((rank.stepping_s for rank in ranks), default=0.0)
        started_at = began_at + datetime.timedelta(seconds=launch.wall_s - took_s)
        return replace(
            launch,
            launch=out.name,
            purpose=order.behind.purpose,
            turn=order.behind.turn,
            block=order.behind.block,
            ranks=ranks,
            behind=launch.launch,
            slot=f"{launch.slot}{BEHIND_SLOT}" if launch.slot else "",
            wall_s=took_s,
            started_at=_at(started_at),
        )

    def _written(self, script: Script | None) -> list[str]:
        """Return a list with a message if a script's launch changed shared files, otherwise ``[]``.

        Not all changes are detected.
        """
        if script is None or not script.data:
            return []
        before = self._shared
        self._shared = copies.shared_stamps(Path(script.folder), script.data)
        changed = copies.changed_shared_files(before, self._shared)
        more = [f"{len(changed) - 1} more"] if len(changed) > 1 else []
        return [f"shared: {'; '.join([*changed[:1], *more])}: {UNSHARED}"] if changed else []

    def _spec_of(
        self, order: Order, folder: Path, described: Described, detailed: bool
    ) -> LaunchSpec:
        """Return the launch specification of an order."""
        case = order.arm.case
        seat = order.seat
        task = _task(order, self.catalogue, described, self.data_seed)
        name = _name(order)
        limits = _deadlines(case, described, self.settings.budget_s)
        deadlines = _with_collective(limits, self.collective_s)
        if isinstance(task, Refer):
            case = references.world(case, described, task.streamed)
        spec = self._spec(name, case, folder, task, deadlines=deadlines, detailed=detailed)
        return spec if seat is None else replace(spec, hosts=seat.hosts, devices=seat.devices)


def _task(order: Order, catalogue: Catalogue, described: Described, data_seed: int) -> Task:
    """Return the task of the ranks for this order."""
    case = order.arm.case
    window = order.window
    if order.script is not None:
        return order.script
    if order.purpose is Purpose.GATE:
        return Gate(twin=catalogue.twin(case, described.twin))
    if order.purpose is Purpose.BITS:
        return Bits(steps=window.steps, flip=order.flip)
    if order.purpose is Purpose.REFERENCE:
        return Refer(
            of=case,
            steps=window.steps,
            streamed=order.streamed,
            replicates=order.replicates,
            coarse=described.reference is not None and described.reference.coarse,
            data_seed=data_seed,
        )
    seeds: dict[str, Any] = dict(draw=order.draw, data_seed=data_seed)
    behind = None if order.behind is None else Timed(**vars(order.behind.window), **seeds)
    return Timed(**vars(window), **seeds, behind=behind)


def _name(order: Order) -> str:
    """Return the prefix of the name of a launch's folder."""
    arm = _ODD.sub("-", order.arm.name.strip("@"))  # an arm's name may contain spaces
    return f"{order.plan.hash[:6]}-{order.label}-{arm}"


def _at(moment: datetime.datetime) -> str:
    """Return a time in ISO 8601 format with milliseconds."""
    return moment.isoformat(timespec="milliseconds")


def _without(launch: LaunchRecord, profile: LaunchRecord) -> LaunchRecord:
    """Return a timed launch without its profiled steps and without their failure.

    A failure in the profiled steps must not fail the timed launch.
    """
    return replace(
        launch,
        wall_s=launch.wall_s - profile.wall_s,
        status=LaunchStatus.OK,
        cause=None,
    )


def _swept(
    spec: LaunchSpec, ended: Ended, engine: Entry, catalogue: Catalogue
) -> list[Row] | LaunchError:
    """Return the rows of one sweep, or the error that broke it."""
    cause = causes.attribute(ended.ranks, ended.unreachable)
    if cause is not None:
        error = RetryableError if cause.kind in PASSING else LaunchError
        return error(
            f"the fabric sweep broke: rank {cause.rank}: {cause.message}",
            where=spec.case.world,
            expected="collectives that complete",
            fix=f"less {spec.out}/rank{cause.rank}.log",
        )
    rows = json.loads((Path(spec.out) / "rank0.json").read_text(encoding="utf-8"))
    number = int(spec.launch.rpartition("-")[2])
    network = label(catalogue.network(spec.case))
    knobs = spec.case.knobs_of(engine.name, engine.knobs)
    rate_mbit = knobs.get("rate_mbit") if engine.engine.shapes_links else None
    parsed = (from_doc(Row, row) for row in rows)
    return [replace(row, launch=number, network=network, link_mbit=rate_mbit) for row in parsed]


def _record(order: Order, spec: LaunchSpec, ended: Ended) -> LaunchRecord:
    """Return the record of a world, before its samples are evaluated."""
    cause = causes.attribute(ended.ranks, ended.unreachable)
    if cause is not None and order.script is not None:
        cause = replace(cause, message=_with_outside(cause.message))
    ranks = _left_by([end.rank for end in ended.ranks], Path(spec.out))
    return LaunchRecord(
        launch=spec.launch,
        purpose=order.purpose,
        plan=order.plan.hash,
        arm=order.arm.name,
        case=order.arm.case.hash,
        block=order.block,
        turn=order.turn,
        attempt=order.attempt,
        started_at="",
        wall_s=ended.lasted_s,
        agent=ended.agent,
        engine="",
        status=LaunchStatus.OK if cause is None else LaunchStatus.FAILED,
        cause=cause,
        ranks=ranks,
        gpus=_gpus(Path(spec.out), ended, ranks, kept=order.profiled),
        hosts=spec.hosts,
        devices=spec.devices,
    )


def _gpus(
    out: Path, ended: Ended, ranks: Sequence[RankRecord], *, kept: bool
) -> tuple[GpuWindow, ...]:
    """Return a summary of the device readings of each node.

    The summary covers the timed window of the node's ranks, by the node's clock. If ``kept`` is
    set, store the readings of the first node next to the traces.
    """
    gpus: list[GpuWindow] = []
    for end in ended.ranks:
        file = readings_file(out, end.rank)
        polls = nvml.followed(file)
        windows = [
            rank.window_ns for rank in ranks if rank.window_ns is not None and rank.node == end.node
        ]
        window = (min(w[0] for w in windows), max(w[1] for w in windows)) if windows else None
        gpus += nvml.summarise(polls, window, end.node)
        if kept and polls and not end.rank:
            write_text(out / "gpus.json", json.dumps([r for poll in polls for r in poll]))
        file.unlink(missing_ok=True)
    return tuple(gpus)


def _with_outside(message: str) -> str:
    """Return the error message of a script, with advice if it could not write to a file."""
    if os.strerror(errno.EROFS) not in message:
        return message
    return f"{message} ({READ_ONLY})"


def _compared(launch: LaunchRecord, folder: Path) -> LaunchRecord:
    """Return the launch with the result of comparing its ranks' bits."""
    compared = bits.compare([load_samples(folder, launch.launch, rank) for rank in launch.ranks])
    sentences = bits.sentences(compared, launch.ranks)
    return replace(launch, compared=compared.num, wrong=sentences)


def figured(
    orders: Sequence[Order],
    launches: Sequence[LaunchRecord],
    folder: Path,
    described: Sequence[Described],
) -> list[LaunchRecord]:
    """Return concurrent launches with the metrics that follow from their ranks' samples."""
    records = []
    for order, launch, answer in zip(orders, launches, described, strict=True):
        record = launch
        if launch.cause is None and order.purpose is Purpose.BITS:
            record = _compared(launch, folder)
        elif launch.cause is None and order.purpose not in (Purpose.GATE, Purpose.REFERENCE):
            beside = [rank for other in launches if other is not launch for rank in other.ranks]
            record = _figured(order, launch, folder, answer, beside)
        records.append(record)
    return records


def _figured(
    order: Order,
    launch: LaunchRecord,
    folder: Path,
    described: Described,
    beside: Sequence[RankRecord],
) -> LaunchRecord:
    """Return the launch with the metrics computed from its ranks' samples and traces.

    ``beside`` are the ranks of the worlds that ran concurrently.
    """
    case = order.arm.case
    expected = described.expected
    ranks = launch.ranks
    samples = [load_samples(folder, launch.launch, rank) for rank in ranks]
    cut = order.window.cut
    curve = order.reference
    target = figures.target(order.plan, described)
    derived = figures.figures(case, expected, ranks, samples, cut, curve, beside, target)
    launch = replace(launch, **vars(derived))
    if order.purpose is not Purpose.PROFILE:
        return launch
    try:
        talking = talks(case, expected)
        budget = budget_of(folder, launch.launch, ranks, order.window.profiled, talking)
    except ScaleproofError as error:
        return replace(launch, wrong=(*launch.wrong, f"timeline: {error.what}"))
    perturbed = figures.perturbation(samples, order.window)
    return replace(
        launch, budget=budget, perturbation=perturbed.ratio, perturbation_low=perturbed.low
    )


def _left_by(ranks: Sequence[int], out: Path) -> tuple[RankRecord, ...]:
    """Return the records that the ranks wrote. Ranks without a record are left out."""
    paths = (out / f"rank{rank}.json" for rank in ranks)
    return tuple(
        from_doc(RankRecord, json.loads(path.read_text(encoding="utf-8")))
        for path in paths
        if path.is_file()
    )


def _deadlines(case: CaseSpec, described: Described, budget_s: float | None) -> Deadlines:
    """Return deadlines that no healthy step of this case reaches.

    The duration of a step is estimated from the FLOPs of the case and the speed of a slow device. A
    step of a user's script may not take longer than the time budget of the whole run. Its start and
    its first step may, because they compile and load.
    """
    if case.script:
        most_s = max(LEAST_SILENCE_S, math.inf if budget_s is None else budget_s)
        return replace(
            SCRIPTS,
            step_s=min(SCRIPTS.step_s, most_s),
            meet_s=min(SCRIPTS.meet_s, most_s),
            idle_s=SCRIPTS.idle_s if case.device is Device.CPU else 0.0,  # GPUs need no core
        )
    if described.facts is None or described.expected is None:
        return _USUAL
    flops = described.facts.flops_per_sample * described.expected.global_batch
    step_s = flops / case.world_size / (SLOW_FLOPS if case.device is Device.CPU else 1e13)
    first_s = _USUAL.first_step_s if case.compiled is Compiled.NO else COMPILING_S
    return replace(
        _USUAL,
        step_s=max(_USUAL.step_s, 10 * step_s),
        meet_s=max(_USUAL.meet_s, 10 * step_s),
        first_step_s=max(first_s, 20 * step_s),
        collective_s=max(_USUAL.collective_s, 10 * step_s),
    )


def _with_collective(limits: Deadlines, asked_s: float) -> Deadlines:
    """Return deadlines with the collective timeout of the cluster file, if it sets one.

    The other deadlines are raised to at least this timeout. Otherwise the deadline of a phase could
    end a collective before the timeout does.
    """
    if not asked_s:
        return limits
    return replace(
        limits,
        collective_s=asked_s,
        step_s=max(limits.step_s, asked_s),
        first_step_s=max(limits.first_step_s, asked_s),
        meet_s=max(limits.meet_s, asked_s),
    )


def mean_wall_s(launches: Sequence[LaunchRecord]) -> Mapping[str, float]:
    """Return the mean wall time (s) of the launches of each case, by the hash of the case.

    If a case has timed launches, only these count. Otherwise its probes or calibration launches
    count. A calibration launch trains for ``HORIZON`` times as long as a timed launch; the time
    beyond a timed launch is subtracted.
    """
    out: dict[str, list[float]] = {}
    for purpose in (Purpose.PILOT, Purpose.PROBE, Purpose.TIMED):
        by_case: dict[str, list[float]] = {}
        for launch in launches:
            if launch.purpose is purpose:
                more = 1 - 1 / HORIZON if purpose is Purpose.PILOT else 0.0
                stepping = max((rank.stepping_s for rank in launch.ranks), default=0.0)
                by_case.setdefault(launch.case, []).append(launch.wall_s - more * stepping)
        out |= by_case
    return {case: fmean(walls) for case, walls in out.items()}
