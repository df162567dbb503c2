"""Ladders of runs as tables: what was measured here, in the form in which published ladders come.

    runs -> rungs, by all that stays the same in a ladder -> a point each: shape, mean step
         -> what the strategy states at two worlds: what is exchanged at any -> Table
         -> links that the sweep measured, else those of the devices' data sheets

A rung that was not measured is a target. It is described like the others: a strategy says what it
sends, keeps and cuts at any size, without being launched.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from harness.analysis.foresight.physics.collectives import Fabric, Kind, nccl
from harness.analysis.foresight.physics.schedules import Schedule, schedule_of
from harness.analysis.foresight.priors import Belief
from harness.analysis.foresight.published.reading import fabric_of
from harness.analysis.foresight.published.table import Refused, Table
from harness.analysis.foresight.shapes import Kept, Model, Point, Sent, Shape
from harness.analysis.foresight.terms import Unknown
from harness.record import Described, Expected, Purpose, RunRecord
from harness.record.fabric import LATENCY_BYTES, Row
from harness.spec import CaseSpec, Catalogue, Device, Dim, Mesh

#: Facts of a node that change how fast it trains.
MATTERS = re.compile(
    r"version: (torch|nvidia-nccl.*|container image)|hardware: driver|clock: (gpu \d+|governor)"
)
#: A payload from which on a sweep's rate is that of the link.
LARGE_BYTES = 1 << 20
#: Parameters are gathered once for an optimizer's update, twice for forward and backward.
TWICE = 1.5
#: Operations whose cost has a closed form, and whether their input is one rank's part of the whole.
OPERATIONS: Mapping[str, tuple[Kind, bool]] = {
    "all_reduce": (Kind.ALL_REDUCE, False),
    "all_gather": (Kind.ALL_GATHER, True),
    "reduce_scatter": (Kind.REDUCE_SCATTER, False),
    "all_to_all": (Kind.ALL_TO_ALL, False),
}
#: Links that were swept are known: how far a training's share of them may lie from the sweep's.
SWEPT = Belief(1.0, 0.15)
#: Latency that was swept: shortest messages of one kind speak roughly for the others.
SWEPT_LATENCY = Belief(1.0, 0.5)
#: Intervals of ladders of one's own are so many times as wide as published ones teach. Learned from
#: ladders over links of 25 Mbit/s; others are held out (tests/acceptance/ladders.py).
STRETCH = 1.6
#: A normal's 95th percentile; and jitter as a share of compute, where all of it was measured.
Z95, NO_SHARE = 1.645, Belief(1e-4, 0.7)
#: Samples at which a micro-batch is half efficient, where a sample is no text of many tokens.
NO_TEXT = Belief(0.3, 1.5)


@dataclass(frozen=True)
class Rung:
    """A case and the mean step of its launches in s, None where it is only asked for.

    ``jitter_s`` is the standard deviation of a step, by its median and 95th percentile.
    """

    run: RunRecord
    case: CaseSpec
    described: Described
    step_s: float | None
    jitter_s: float = 0.0


def ladders(found: Sequence[RunRecord], known: Catalogue) -> dict[str, list[Rung]]:
    """The measured rungs of every training, by all that does not change along a ladder.

    Where engines shape links, worlds of one node use none: they belong to every network's ladder.
    """
    named: dict[str, list[Rung]] = {}
    inside: dict[str, list[Rung]] = {}
    networks: dict[str, str] = {}
    for rung in (r for run in found for r in rungs(run)):
        name, shaped = f"{rung.case.family}{rung.case.extras}", known.network(rung.case)
        if len(rung.case.nodes) == 1:
            inside.setdefault(name, []).append(rung)
            continue
        knobs = {k: v for k, v in rung.case.knobs.items() if k not in dict(shaped)}
        networks[name] = f"{rung.case.family}{replace(rung.case, knobs=knobs).extras}"
        named.setdefault(name, []).append(rung)
    whole = {name: inside.get(networks[name], []) + of for name, of in named.items()}
    whole |= {name: of for name, of in inside.items() if name not in {*networks.values(), *named}}
    of_size = {k: sorted(of, key=lambda r: r.case.world_size) for k, of in whole.items()}
    return dict(zip(shortened(list(of_size)), of_size.values(), strict=True))


def shortened(names: Sequence[str]) -> list[str]:
    """Names without the settings that all of them share."""
    parts = [name.split("+") for name in names]
    common = set[str].intersection(*(set(p[1:]) for p in parts)) if len(parts) > 1 else set()
    return ["+".join(p for p in each if p not in common) for each in parts]


def rungs(run: RunRecord) -> Iterator[Rung]:
    """Every case of a run that was timed, but for plain ones and users' scripts."""
    cases = {a.case.hash: a.case for p in run.plans for a in p.arms}
    for key, case in cases.items():
        timed = [
            x.steps for x in run.by_case.get(key, ())
            if x.purpose is Purpose.TIMED and x.usable and x.steps is not None
        ]  # fmt: skip
        described = run.described.get(key)
        if timed and described is not None and case.communicate and not (case.plain or case.script):
            jitter_s = median((s.p95_s - s.median_s) / Z95 for s in timed)
            yield Rung(run, case, described, fmean(s.mean_s for s in timed), jitter_s)


def table(
    name: str, ladder: Sequence[Rung], known: Catalogue, *,
    on: Collection[int] = (), target: Rung | None = None,
) -> Table | Refused:  # fmt: skip
    """One ladder as a table; its worlds ``on`` calibrate (default: all), others are compared.

    Refused: runs on unlike machines or software do not speak of each other.
    """
    if why := _unlike([r.run for r in ladder]):
        return Refused(id=name, why=f"its runs are on unlike machines or software: {why}")
    calibrating = [r for r in ladder if not on or r.case.world_size in on]
    worlds = {r.case.world_size for r in calibrating}
    if len(worlds) < 2:
        told = f"{worlds.pop()} ranks only" if worlds else "none of these sizes"
        return Refused(id=name, why=f"it was measured on {told}, two worlds are needed")
    rungs = [*ladder, *([target] if target else [])]
    try:
        shapes = [shape_of(r.case, r.described, known) for r in rungs]
    except ValueError as error:
        return Refused(id=name, why=str(error))
    sent = sent_by([(r.case, r.described) for r in [*calibrating, *([target] if target else [])]])
    if all(s.tensor * s.context * s.stages == 1 for s in shapes):
        shapes = [s if s.kept is Kept.NODE_CUT else replace(s, sent=sent) for s in shapes]
    fabric, peak, beliefs, notes = links(calibrating[-1].run)
    if all(s.seq == 1 for s in shapes):
        beliefs[Unknown.SMALL] = NO_TEXT
    if (jitter_s := calibrating[0].jitter_s) > 0:
        beliefs |= {Unknown.WAIT_S: Belief(jitter_s, 0.5), Unknown.WAIT_SHARE: NO_SHARE}
    points = tuple(
        Point(shape=shape, step_s=step_s, calibrates=step_s is not None and shape.ranks in worlds)
        for shape, step_s in _means(rungs, shapes).items()
    )
    return Table(
        id=name, family=name, fabric=fabric, peak_flops=peak, points=points, beliefs=beliefs,
        stretch=STRETCH, notes=tuple(notes),
    )  # fmt: skip


def _unlike(found: Sequence[RunRecord]) -> str:
    """In what runs differ that changes speed; empty where they are alike."""
    machines = {(r.machine.hardware_class, r.software.get("torch", "")) for r in found}
    if len(machines) > 1:
        return " and ".join(sorted(" with torch ".join(m) for m in machines))
    facts = [next(iter(r.facts.values()), {}) for r in found]
    for fact in dict.fromkeys(name for of in facts for name in of if MATTERS.fullmatch(name)):
        if len(values := {of[fact] for of in facts if fact in of}) > 1:
            return f"{fact} is {' and '.join(sorted(values))}"
    return ""


def _means(ladder: Sequence[Rung], shapes: Sequence[Shape]) -> dict[Shape, float | None]:
    """The mean step of each shape, over all runs that have it."""
    steps: dict[Shape, list[float]] = {}
    for rung, shape in zip(ladder, shapes, strict=True):
        steps.setdefault(shape, []).extend([] if rung.step_s is None else [rung.step_s])
    return {shape: fmean(each) if each else None for shape, each in steps.items()}


def shape_of(case: CaseSpec, described: Described, known: Catalogue) -> Shape:
    """ValueError for a case of which nothing was foretold."""
    facts, expected = described.facts, described.expected
    if why := described.unsupported or described.error:
        raise ValueError(f"{case.world} ranks: {why}")
    if facts is None or expected is None:
        raise ValueError("what its strategy sends is not known")
    mesh = _mesh(case, expected.stages)
    tensor, context, stages = (mesh.size(d) for d in (Dim.TP, Dim.CP, Dim.PP))
    replicas = case.world_size / (tensor * context * stages)
    micros = max(case.accumulate, _parts(case, known))
    return Shape(
        ranks=case.world_size, tensor=tensor, context=context, stages=stages, micros=micros,
        micro_batch=expected.global_batch / replicas / micros, seq=facts.tokens_per_sample,
        schedule=_schedule(case), kept=_kept(expected.payload_bytes, case.world_size),
        hides=case.compressor is None or expected.payload_bytes.keys() <= {"all_reduce"},
        model=Model(name=f"{case.model}-{case.size}", params=float(facts.num_params)),
        configuration=(("precision", str(case.precision)),),
    )  # fmt: skip


def _mesh(case: CaseSpec, stages: int) -> Mesh:
    """As the case states it, else stages in front of equal replicas."""
    if case.mesh:
        return Mesh.parse(case.mesh).at(case.world_size)
    inner = stages if case.world_size % stages == 0 else 1
    return Mesh({Dim.PP: inner, Dim.DP: case.world_size // inner})


def _parts(case: CaseSpec, known: Catalogue) -> int:
    """Micro-batches that the strategy itself cuts a batch into."""
    entry = known.entries["strategies"].get(case.strategy)
    knob = entry.supports.parts if entry is not None else None
    if entry is None or not knob:
        return 1
    return int(case.knobs.get(f"{case.strategy}.{knob}", entry.knobs.get(knob, 1)))


def _schedule(case: CaseSpec) -> Schedule:
    """As the knob names it; schedules that are not played stand as 1F1B."""
    named = str(case.knobs.get(f"{case.strategy}.schedule", ""))
    return schedule_of(named) or Schedule.ONE_EACH


def _kept(payload: Mapping[str, Sequence[float]], ranks: int) -> Kept:
    """By what a rank issues in a step."""
    issued = {name: max(each, default=0.0) for name, each in payload.items()}
    scattered = sum(v for name, v in issued.items() if "reduce_scatter" in name)
    gathered = sum(v for name, v in issued.items() if "all_gather" in name)
    reduced = sum(v for name, v in issued.items() if "all_reduce" in name or "allreduce" in name)
    if scattered and reduced > scattered / ranks:
        return Kept.NODE_CUT
    if not scattered and gathered:  # a backend without a reduce-scatter reduces all of it
        scattered = reduced
    if not scattered:
        return Kept.WHOLE
    return Kept.ALL_CUT if gathered * ranks > TWICE * scattered else Kept.OPTIMIZER_CUT


def sent_by(cases: Sequence[tuple[CaseSpec, Described]]) -> tuple[Sent, ...]:
    """What is exchanged at any size, by what two sizes state; () where no form is known.

    Bytes of a world are constant or grow with the ranks: the two largest sizes tell which.
    """
    stated = {
        case.world_size: told.expected
        for case, told in cases if case.world_size > 1 and told.expected is not None
    }  # fmt: skip
    sizes = sorted(stated)[-2:]
    names = {name for n in sizes for name in stated[n].payload_bytes}
    if not sizes or not names <= OPERATIONS.keys():
        return ()
    return tuple(_law(name, {n: stated[n] for n in sizes}) for name in sorted(names))


def _law(name: str, stated: Mapping[int, Expected]) -> Sent:
    kind, is_part = OPERATIONS[name]
    wholes = [
        max(one.payload_bytes.get(name, (0.0,))) * (ranks if is_part else 1)
        for ranks, one in stated.items()
    ]
    (first, last), (small, large) = (min(stated), max(stated)), (wholes[0], wholes[-1])
    of_rank = (large - small) / (last - first) if last > first else 0.0
    largest = stated[last].largest_message or large
    pieces = max(1, round(large / largest)) if largest else 1
    return Sent(kind=kind, num_bytes=large - of_rank * last, of_rank=of_rank, pieces=pieces)


def padding(largest: Rung, target: Rung) -> float:
    """How many times as many bytes all shards have together, where parameters are sharded.

    Every rank gets an equal part of the first dimension, so that narrow parameters grow.
    """
    told = [(r.case.world_size, r.described.expected) for r in (largest, target)]
    wholes = [
        max(one.payload_bytes.get("all_gather", (0.0,))) * ranks
        for ranks, one in told
        if one is not None and _kept(one.payload_bytes, ranks) in (Kept.ALL_CUT, Kept.NODE_CUT)
    ]
    return wholes[1] / wholes[0] if len(wholes) == 2 and wholes[0] else 1.0


Links = tuple[Fabric, float | None, dict[Unknown, Belief], list[str]]


def links(run: RunRecord) -> Links:
    """Rates and latency within a node and between nodes: as swept, else as of data sheets."""
    gpu = run.machine.gpu if run.settings.device is Device.CUDA else ""
    fabric, peak, told = fabric_of({"gpu": gpu or "", "gpus_per_node": max(run.settings.nodes)})
    beliefs, notes = dict[Unknown, Belief](), list(told)
    if fabric.per_node == 1:  # nothing goes over links inside a node
        notes = [n for n in notes if "intra-node" not in n]
    swept = {False: list[float](), True: list[float]()}
    for row in filter(_reduces, run.fabric):
        if row.payload_bytes >= LARGE_BYTES and row.bus_bps:
            swept[len(row.nodes) > 1].append(row.bus_bps)
    near, far = (max(swept[between], default=None) for between in (False, True))
    fabric = replace(
        fabric, intra_bytes_per_s=near or fabric.intra_bytes_per_s,
        inter_bytes_per_s=far or fabric.inter_bytes_per_s,
    )  # fmt: skip
    for rate, unknown, where in (
        (near, Unknown.LINK, "intra-node"), (far, Unknown.NETWORK, "inter-node"),
    ):  # fmt: skip
        if rate:
            beliefs[unknown] = SWEPT
            notes = [n for n in notes if where not in n]
    latency, transfer = _by_kind(run.fabric, fabric)
    if latency:
        fabric = replace(fabric, latency_times=latency, transfer_times=transfer)
        beliefs[Unknown.LATENCY] = SWEPT_LATENCY
    return fabric, peak, beliefs, notes


def _by_kind(swept: Sequence[Row], fabric: Fabric) -> tuple[dict[Kind, float], dict[Kind, float]]:
    """How much longer the shortest and the largest messages took than NCCL's own model says.

    On the largest world that was swept: a library may do worse with one kind than with another.
    """
    latency, transfer = dict[Kind, float](), dict[Kind, float]()
    for operation, (kind, _) in OPERATIONS.items():
        rows = [r for r in swept if r.operation == operation and r.right and r.time_s]
        if not rows:
            continue
        nodes = max((r.nodes for r in rows), key=lambda n: (len(n), sum(n)))
        by_size = {r.payload_bytes: r.time_s or 0.0 for r in rows if r.nodes == nodes}
        small, large = min(by_size), max(by_size)
        if small > LATENCY_BYTES or large < LARGE_BYTES:
            continue
        first, last = (nccl(kind, size, sum(nodes), max(nodes), fabric) for size in (small, large))
        latency[kind] = by_size[small] / first.total_s
        rest_s = by_size[large] - last.latency_s * latency[kind]
        transfer[kind] = max(1.0, rest_s / last.transfer_s)
    return latency, transfer


def _reduces(row: Row) -> bool:
    return row.operation == "all_reduce" and row.right
