"""Convert measured scaling sweeps to tables, the same form as published ones.

runs -> measured cases, grouped by everything that is constant in a sweep
     -> a point for each case: its shape and its mean step time
     -> bytes that the strategy states at two sizes, hence bytes at any size
     -> links as a bandwidth sweep measured them, or as data sheets state them -> Table

A case that was not measured is a target. It is described like the others, because a strategy states
what it sends, keeps and shards at any size without being launched.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from harness.base.stats import t_interval
from harness.cases import CaseSpec, Catalogue, Device, Dim, Mesh, StandIn
from harness.features.foresight.learned import HALF_SDS
from harness.features.foresight.own.stated import StatedTraffic, kept, sent_by, stated, watched
from harness.features.foresight.own.swept import links
from harness.features.foresight.physics.schedules import PipelineSchedule, schedule_of
from harness.features.foresight.priors import Belief
from harness.features.foresight.published.table import PublishedTable, Refused
from harness.features.foresight.shapes import KeptStates, Model, Point, Shape
from harness.features.foresight.terms import Unknown
from harness.record import Described, Purpose, RunRecord, ScriptObservations, Status

#: Facts of a node that change training speed.
MATTERS = re.compile(
    r"version: (torch|nvidia-nccl.*|container image)|hardware: driver|clock: (gpu \d+|governor)"
)
#: Bytes of a parameter if its type is unknown.
FP32 = 4.0
#: Factor by which intervals of the user's sweeps are wider than published ones suggest. It was
#: learned from sweeps over links of 25 Mbit/s and tested on held-out ones
#: (benchmarks/experiments/ladders.py).
STRETCH = 1.6
#: 95th percentile of the standard normal distribution.
Z95 = 1.645


@dataclass(frozen=True)
class MeasuredRung:
    """A case of a scaling sweep, measured or only to be predicted.

    ``step_s`` is the mean step time of its launches in seconds, or None if it was not measured.
    ``jitter_s`` is the standard deviation of a step in seconds, estimated from its median and 95th
    percentile. ``log_sd`` is the standard deviation of ln(step_s) between launches. ``cpu_s`` is
    the core time of a step in seconds. A user's script has no description of its traffic. For a
    script, ``watched`` holds the collectives that hooks observed, and ``samples`` is the number of
    samples in a step.
    """

    run: RunRecord
    case: CaseSpec
    described: Described
    step_s: float | None
    jitter_s: float = 0.0
    watched: ScriptObservations | None = None
    samples: float = 0.0
    cpu_s: float = 0.0
    log_sd: float = 0.0

    @property
    def stated(self) -> StatedTraffic | None:
        """Return the bytes of the collectives that a rank issues in a step, or None if unknown."""
        return stated(self.described) if self.watched is None else watched(self.watched)


def ladders(records: Sequence[RunRecord], catalogue: Catalogue) -> dict[str, list[MeasuredRung]]:
    """Return the measured cases of every training run, grouped into scaling sweeps.

    If the case shapes its links, worlds on one node do not use them. They therefore belong to the
    sweep of every network.
    """
    named: dict[str, list[MeasuredRung]] = {}
    inside: dict[str, list[MeasuredRung]] = {}
    networks: dict[str, str] = {}
    crowded = StandIn.OVERSUBSCRIBED  # such ranks share cores, which larger worlds do not
    of_runs = (r for run in records for r in rungs(run) if crowded not in run.stand_ins(r.case))
    for rung in of_runs:
        name = f"{rung.case.family}{rung.case.extras}"
        shaped = catalogue.network(rung.case)
        if len(rung.case.nodes) == 1:
            inside.setdefault(name, []).append(rung)
            continue
        knobs = {key: knob for key, knob in rung.case.knobs.items() if key not in dict(shaped)}
        networks[name] = f"{rung.case.family}{replace(rung.case, knobs=knobs).extras}"
        named.setdefault(name, []).append(rung)
    whole = {name: inside.get(networks[name], []) + of for name, of in named.items()}
    whole |= {name: of for name, of in inside.items() if name not in {*networks.values(), *named}}
    of_size = {key: sorted(of, key=lambda r: r.case.world_size) for key, of in whole.items()}
    return dict(zip(shortened(list(of_size)), of_size.values(), strict=True))


def shortened(names: Sequence[str]) -> list[str]:
    """Return the names without the settings that all of them share."""
    parts = [name.split("+") for name in names]
    common = set[str].intersection(*(set(part[1:]) for part in parts)) if len(parts) > 1 else set()
    return ["+".join(word for word in words if word not in common) for words in parts]


def rungs(run: RunRecord) -> Iterator[MeasuredRung]:
    """Yield every case of a run that was timed, except plain baselines."""
    cases = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    for key, case in cases.items():
        launches = [
            x
            for x in run.by_case.get(key, ())
            if x.purpose is Purpose.TIMED and x.usable and x.steps is not None
        ]
        described = run.described.get(key, Described() if case.script else None)
        if not launches or described is None or not case.communicate or case.plain:
            continue
        timed = [launch.steps for launch in launches if launch.steps is not None]
        last = launches[-1]
        yield MeasuredRung(
            run,
            case,
            described,
            fmean(steps.mean_s for steps in timed),
            jitter_s=median((steps.p95_s - steps.median_s) / Z95 for steps in timed),
            watched=last.ranks[0].watched,
            samples=last.consumed / timed[-1].count,
            cpu_s=fmean(rank.cpu_s for rank in last.ranks) / timed[-1].count,
            log_sd=_log_sd([steps.mean_s for steps in timed]),
        )


def _log_sd(steps_s: Sequence[float]) -> float:
    """Return the standard deviation of ln(mean step time), or 0 for a single step time.

    A normal distribution with this standard deviation has an 80 % interval that is as wide as
    Student's t interval of the mean.
    """
    spread = t_interval([math.log(step_s) for step_s in steps_s], 0.2)
    if spread.low is None or spread.high is None:
        return 0.0
    return (spread.high - spread.low) / 2 / HALF_SDS


def table(
    name: str,
    ladder: Sequence[MeasuredRung],
    catalogue: Catalogue,
    *,
    on: Collection[int] = (),
    target: MeasuredRung | None = None,
) -> PublishedTable | Refused:
    """Return one scaling sweep as a table.

    The world sizes in ``on`` calibrate (default: all), and predictions for the others are compared
    with their measurements. Return Refused if the runs differ in machines or software, or if no
    prediction is possible.
    """
    calibrating = [r for r in ladder if not on or r.case.world_size in on]
    if why := _speaks_not(ladder, calibrating):
        return Refused(id=name, why=why)
    targets = [] if target is None else [target]
    rungs = [*ladder, *targets]
    try:
        shapes = _shapes(rungs, [*calibrating, *targets], catalogue)
    except ValueError as error:
        return Refused(id=name, why=str(error))
    worlds = {r.case.world_size for r in calibrating}
    points = tuple(
        Point(
            shape=shape,
            step_s=fmean(r.step_s for r in alike if r.step_s) if alike else None,
            calibrates=bool(alike) and shape.ranks in worlds,
            log_sd=math.hypot(*(r.log_sd for r in alike)) / max(1, len(alike)),
        )
        for shape, alike in _measured(rungs, shapes).items()
    )
    fabric, peak, beliefs, notes = links(calibrating[-1].run)
    if (jitter_s := calibrating[0].jitter_s) > 0:
        beliefs[Unknown.WAIT_S] = Belief(jitter_s, 0.5)
    return PublishedTable(
        id=name,
        family=name,
        fabric=fabric,
        peak_flops=peak,
        points=points,
        beliefs=beliefs,
        stretch=STRETCH,
        notes=tuple(notes),
    )


def _speaks_not(ladder: Sequence[MeasuredRung], calibrating: Sequence[MeasuredRung]) -> str:
    """Return why these cases cannot predict other world sizes, or an empty string."""
    if why := _unlike([r.run for r in ladder]):
        return f"its runs are on different machines or software: {why}"
    if wrong := next((why for r in calibrating if (why := _wrong(r))), ""):
        return wrong
    worlds = {r.case.world_size for r in calibrating}
    if len(worlds) < 2:
        world = worlds.pop() if worlds else 0
        message = f"{world} rank{'s' * (world > 1)} only" if world else "none of these sizes"
        return f"measured on {message}, but two world sizes are needed"
    return ""


def _shapes(
    rungs: Sequence[MeasuredRung], telling: Sequence[MeasuredRung], catalogue: Catalogue
) -> list[Shape]:
    """Return the shapes of the cases.

    The bytes that ranks send at any size are derived from the cases in ``telling``. If all cases
    use the cores of one machine, the core time of a step is taken from the first case in
    ``telling``. Raise ValueError for a case without a shape.
    """
    shapes = [_shape(rung, catalogue) for rung in rungs]
    sent = sent_by({r.case.world_size: r.stated for r in telling})
    if all(s.tensor * s.context * s.stages == 1 for s in shapes):
        shapes = [s if s.kept is KeptStates.NODE_CUT else replace(s, sent=sent) for s in shapes]
    if cores := _shared(rungs):
        shapes = [replace(s, cpu_s=telling[0].cpu_s, cores=cores) for s in shapes]
    return shapes


def _wrong(rung: MeasuredRung) -> str:
    """Return why the times of a case are invalid (its status is ERROR), or an empty string."""
    errors = (v for v in rung.run.verdicts if v.status is Status.ERROR)
    verdict = next((error for error in errors if error.case_hash == rung.case.hash), None)
    return "" if verdict is None else f"{verdict.case} is an ERROR: {verdict.detail}"


def _shared(rungs: Sequence[MeasuredRung]) -> int:
    """Return the number of cores of the machine if all cases share them, or else 0.

    Cases on one node share the cores of its machine. So do cases whose nodes are emulated.
    """
    cases = [rung.case for rung in rungs]
    together = all(len(case.nodes) == 1 or StandIn.EMULATED in case.stand_in for case in cases)
    on_cpus = all(case.device is Device.CPU for case in cases)
    return rungs[0].run.machine.num_cores if together and on_cpus else 0


def _unlike(records: Sequence[RunRecord]) -> str:
    """Return a difference between runs that changes speed, or an empty string."""
    machines = {(run.machine.hardware_class, run.software.get("torch", "")) for run in records}
    if len(machines) > 1:
        return " and ".join(sorted(" with torch ".join(machine) for machine in machines))
    facts = [next(iter(run.facts.values()), {}) for run in records]
    for fact in dict.fromkeys(name for of in facts for name in of if MATTERS.fullmatch(name)):
        if len(values := {of[fact] for of in facts if fact in of}) > 1:
            return f"{fact} is {' and '.join(sorted(values))}"
    return ""


def _measured(
    ladder: Sequence[MeasuredRung], shapes: Sequence[Shape]
) -> dict[Shape, list[MeasuredRung]]:
    """Return the measured cases of each shape, over all runs."""
    of_shape: dict[Shape, list[MeasuredRung]] = {}
    for rung, shape in zip(ladder, shapes, strict=True):
        of_shape.setdefault(shape, []).extend([] if rung.step_s is None else [rung])
    return of_shape


def _shape(rung: MeasuredRung, catalogue: Catalogue) -> Shape:
    """Return the shape of a case.

    It follows from the description by the strategy, or for a script from what hooks observed.
    """
    case, seen, traffic = rung.case, rung.watched, rung.stated
    if not case.script:
        return shape_of(case, rung.described, catalogue)
    if seen is None or traffic is None:
        raise ValueError("its script was not watched, so the communication of its ranks is unknown")
    micros = max(1, seen.backwards)
    return Shape(
        ranks=case.world_size,
        micros=micros,
        kept=kept(traffic.payload, case.world_size),
        seq=1,
        micro_batch=rung.samples / case.world_size / micros,
        model=Model(name=case.model, params=seen.parameter_bytes / FP32),
    )


def shape_of(case: CaseSpec, described: Described, catalogue: Catalogue) -> Shape:
    """Return the shape of a described case. Raise ValueError if its description is incomplete."""
    facts, expected = described.facts, described.expected
    if why := described.refused:
        raise ValueError(f"{case.world} ranks: {why}")
    if facts is None or expected is None:
        raise ValueError("the bytes that its strategy sends are unknown")
    payload = stated(described)
    assert payload is not None
    mesh = _mesh(case, expected.stages)
    tensor, context, stages = (mesh.size(d) for d in (Dim.TP, Dim.CP, Dim.PP))
    replicas = case.world_size / (tensor * context * stages)
    micros = max(case.accumulate, _parts(case, catalogue))
    return Shape(
        ranks=case.world_size,
        tensor=tensor,
        context=context,
        stages=stages,
        micros=micros,
        micro_batch=expected.global_batch / replicas / micros,
        seq=facts.tokens_per_sample,
        schedule=_schedule(case),
        kept=kept(payload.payload, case.world_size),
        hides=case.compressor is None or expected.payload_bytes.keys() <= {"all_reduce"},
        model=Model(name=f"{case.model}-{case.size}", params=float(facts.num_params)),
        configuration=(("precision", str(case.precision)),),
    )


def _mesh(case: CaseSpec, stages: int) -> Mesh:
    """Return the mesh that the case states, or else pipeline stages in front of equal replicas."""
    if case.mesh:
        return Mesh.parse(case.mesh).at(case.world_size)
    inner = stages if case.world_size % stages == 0 else 1
    return Mesh({Dim.PP: inner, Dim.DP: case.world_size // inner})


def _parts(case: CaseSpec, catalogue: Catalogue) -> int:
    """Return the number of micro-batches into which the strategy divides a batch."""
    entry = catalogue.entries["strategies"].get(case.strategy)
    knob = entry.supports.parts if entry is not None else None
    if entry is None or not knob:
        return 1
    return int(case.knobs.get(f"{case.strategy}.{knob}", entry.knobs.get(knob, 1)))


def _schedule(case: CaseSpec) -> PipelineSchedule:
    """Return the schedule that the knob names, or 1F1B if it cannot be simulated."""
    named = str(case.knobs.get(f"{case.strategy}.schedule", ""))
    return schedule_of(named) or PipelineSchedule.ONE_EACH
