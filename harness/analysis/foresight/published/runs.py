"""Ladders of runs as tables: what was measured here, in the form in which published ladders come.

run -> cases that differ in their worlds alone -> a point each: shape, mean step of its launches
-> links that its sweep measured, else those of its devices' data sheets
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.analysis.foresight.physics.collectives import Fabric
from harness.analysis.foresight.published.reading import fabric_of
from harness.analysis.foresight.published.table import Refused, Table
from harness.analysis.foresight.shapes import Kept, Model, Point, Shape
from harness.record import Described, Purpose, RunRecord
from harness.spec import CaseSpec, Catalogue, Device, Dim, Mesh

#: A payload from which on a sweep's rate is that of the link.
LARGE_BYTES = 1 << 20
#: Parameters are gathered once for an optimizer's update, twice for forward and backward.
TWICE = 1.5


@dataclass(frozen=True)
class _Rung:
    """A case and the mean step of its launches, in s."""

    run: RunRecord
    case: CaseSpec
    described: Described
    step_s: float


def tables(runs: Sequence[RunRecord], known: Catalogue) -> list[Table | Refused]:
    """A table for each strategy and model that was measured on two worlds at least.

    Runs on unlike machines or with unlike software are Refused: one does not speak of the other.
    """
    ladders: dict[str, list[_Rung]] = {}
    for rung in (r for run in runs for r in _rungs(run)):
        ladders.setdefault(f"{rung.case.family}{rung.case.extras}", []).append(rung)
    return [_table(name, ladder, known) for name, ladder in ladders.items()]


def _rungs(run: RunRecord) -> Iterator[_Rung]:
    cases = {a.case.hash: a.case for p in run.plans for a in p.arms}
    for key, case in cases.items():
        timed = [
            x.steps.mean_s for x in run.by_case.get(key, ())
            if x.purpose is Purpose.TIMED and x.usable and x.steps is not None
        ]  # fmt: skip
        described = run.described.get(key)
        if timed and described is not None and case.communicate and not (case.plain or case.script):
            yield _Rung(run, case, described, fmean(timed))


def _table(name: str, ladder: Sequence[_Rung], known: Catalogue) -> Table | Refused:
    """Worlds that were measured, all of them calibrating."""
    machines = {(r.run.machine.hardware_class, r.run.software.get("torch", "")) for r in ladder}
    if len(machines) > 1:
        told = " and ".join(sorted(" with torch ".join(m) for m in machines))
        return Refused(id=name, why=f"its runs are on unlike machines or software: {told}")
    if len(worlds := {r.case.world_size for r in ladder}) < 2:
        why = f"it was measured on {worlds.pop()} ranks only, two worlds are needed"
        return Refused(id=name, why=why)
    try:
        shapes = [_shape(r, known) for r in ladder]
    except ValueError as error:
        return Refused(id=name, why=str(error))
    fabric, peak, notes = _fabric(ladder[-1].run)
    mean = _means(ladder, shapes)
    points = tuple(Point(shape=s, step_s=step, calibrates=True) for s, step in mean.items())
    return Table(
        id=name, family=name, fabric=fabric, peak_flops=peak, points=points, notes=tuple(notes)
    )


def _means(ladder: Sequence[_Rung], shapes: Sequence[Shape]) -> dict[Shape, float]:
    """The mean step of each shape, over all runs that have it."""
    steps: dict[Shape, list[float]] = {}
    for rung, shape in zip(ladder, shapes, strict=True):
        steps.setdefault(shape, []).append(rung.step_s)
    return {shape: fmean(each) for shape, each in steps.items()}


def _shape(rung: _Rung, known: Catalogue) -> Shape:
    """ValueError for a case of which nothing was foretold."""
    case, facts, expected = rung.case, rung.described.facts, rung.described.expected
    if facts is None or expected is None:
        raise ValueError("what its strategy sends is not known")
    mesh = _mesh(case, expected.stages)
    tensor, context, stages = (mesh.size(d) for d in (Dim.TP, Dim.CP, Dim.PP))
    replicas = case.world_size / (tensor * context * stages)
    micros = max(case.accumulate, _parts(case, known))
    return Shape(
        ranks=case.world_size, tensor=tensor, context=context, stages=stages, micros=micros,
        micro_batch=expected.global_batch / replicas / micros, seq=facts.tokens_per_sample,
        kept=_kept(expected.payload_bytes, case.world_size),
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


def _kept(payload: Mapping[str, Sequence[float]], ranks: int) -> Kept:
    """By what a rank issues in a step."""
    sent = {name: max(each, default=0.0) for name, each in payload.items()}
    scattered = sum(v for name, v in sent.items() if "reduce_scatter" in name)
    gathered = sum(v for name, v in sent.items() if "all_gather" in name)
    reduced = sum(v for name, v in sent.items() if "all_reduce" in name or "allreduce" in name)
    if not scattered:
        return Kept.WHOLE
    if reduced > scattered / ranks:
        return Kept.NODE_CUT
    return Kept.ALL_CUT if gathered * ranks > TWICE * scattered else Kept.OPTIMIZER_CUT


def _fabric(run: RunRecord) -> tuple[Fabric, float | None, list[str]]:
    """Rates of the largest all-reduces within a node and between nodes, where they were swept."""
    gpu = run.machine.gpu if run.settings.device is Device.CUDA else ""
    fabric, peak, told = fabric_of({"gpu": gpu or "", "gpus_per_node": max(run.settings.nodes)})
    notes = list(told)
    swept = {False: list[float](), True: list[float]()}
    for row in run.fabric:
        if row.operation == "all_reduce" and row.payload_bytes >= LARGE_BYTES and row.bus_bps:
            swept[len(row.nodes) > 1].append(row.bus_bps)
    near, far = (max(swept[between], default=None) for between in (False, True))
    fabric = replace(
        fabric, intra_bytes_per_s=near or fabric.intra_bytes_per_s,
        inter_bytes_per_s=far or fabric.inter_bytes_per_s,
    )  # fmt: skip
    known = {"intra-node": near, "inter-node": far}
    return fabric, peak, [n for n in notes if not any(v and k in n for k, v in known.items())]
