"""Published ladders as a file: tables of points, each with a shape and one measured figure.

``docs/foresight.md`` lists the fields. What stands in a file is either understood or told.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.features.foresight import claims
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.priors import Belief
from harness.features.foresight.published.files import cell_value, documents, field_name
from harness.features.foresight.published.measures import Measure, measured
from harness.features.foresight.published.reading import CONFIGURATION, Fields, fabric_of, shape_of
from harness.features.foresight.published.splitting import calibrating
from harness.features.foresight.shapes import Point, Shape
from harness.features.foresight.terms import Unknown

#: Tables that are no ladder of measured sizes; they are read, and only tried on request.
ASIDE = ("context", "simulator_cross_check")


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One ladder on one machine."""

    id: str
    family: str
    fabric: Fabric
    peak_flops: float | None
    points: tuple[Point, ...]
    role: str = ""
    #: What was measured beside the ladder, and so is known better than by other ladders.
    beliefs: Mapping[Unknown, Belief] = field(default_factory=dict)
    #: By how much its intervals are wider than those that published families teach.
    stretch: float = 1.0
    #: What was assumed, and which fields were passed over.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A table of which nothing can be said, and why."""

    id: str
    why: str


def read(path: Path) -> list[PublishedTable | Refused]:
    """The tables of a file, in its order.

    SpecError: the file is not of this format. A table that can't be used is Refused, with a
    sentence, so that one bad table leaves the others.
    """
    fix = "scaleproof predict --table results/published/scaling.json"
    return [_tried(table, n, path) for n, table in enumerate(documents(path, fix))]


def families_of(paths: Iterable[Path]) -> dict[str, list[PublishedTable]]:
    """The ladders of measured sizes of several files, by what one source published."""
    out: dict[str, list[PublishedTable]] = {}
    for table in (t for path in paths for t in read(path)):
        if isinstance(table, PublishedTable) and table.role not in ASIDE:
            out.setdefault(table.family, []).append(table)
    return out


def _tried(table: Any, number: int, path: Path) -> PublishedTable | Refused:
    name = (
        table.get("id", f"table {number + 1}") if isinstance(table, dict) else f"table {number + 1}"
    )
    try:
        return _table(table, str(name))
    except (ValueError, TypeError) as error:
        return Refused(id=str(name), why=str(error))


def _table(table: Any, name: str) -> PublishedTable:
    if not isinstance(table, Mapping):
        raise ValueError("a table is an object with points")
    rows = table.get("points")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("points is not a list of objects")
    if not rows:
        raise ValueError("it has no points")
    shared = {
        key: value
        for key, value in table.items()
        if not isinstance(value, dict | list) or key == "model"
    }
    broken = claims.contradictions(table)
    rows = [{field_name(str(key)): value for key, value in row.items()} for row in rows]
    rows = [  # what was run is compared as written: torch 2.10 is not 2.1
        {name: value if name in CONFIGURATION else cell_value(value) for name, value in row.items()}
        for row in rows
    ]
    hardware = table.get("hardware") or _one_gpu(rows)
    if not isinstance(hardware, Mapping):
        raise ValueError("hardware is not an object")
    fabric, peak, assumed = fabric_of(hardware)
    fields = Fields(shared=shared, per_node=fabric.per_node, notes=list(assumed))
    points = [
        point
        for number, row in enumerate(rows)
        for point in _points(row, fields, peak, f"point {number + 1}")
    ]
    points, twice = _once(points)
    chosen, calibrated_on = calibrating(
        points, table.get("calibrate_on"), table.get("role") in ASIDE
    )
    points = [replace(p, calibrates=c) for p, c in zip(points, chosen, strict=True)]
    notes = [*broken, *fields.notes, *twice, *calibrated_on, *fields.unknown()]
    return PublishedTable(
        id=name,
        family=str(table.get("family") or table.get("source") or name),
        fabric=fabric,
        peak_flops=peak,
        points=tuple(points),
        role=str(table.get("role", "")),
        notes=tuple(dict.fromkeys(notes)),
    )


def _one_gpu(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The device that all rows name: text tables have no other place for their machine."""
    names = {str(row.get("gpu") or "") for row in rows}
    return {"gpu": names.pop()} if len(names) == 1 else {}


def _once(points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """Points without those that repeat another one; what is said of sizes that stand there twice.

    A figure that is copied is no second measurement: it would make intervals too narrow.
    """
    kept = list[Point]()
    notes = list[str]()
    for point in points:
        same = [p for p in kept if p.shape == point.shape]
        if any(p.step_s == point.step_s for p in same):
            notes.append(
                f"{point.shape.ranks} GPUs stand there twice with one figure: it counts once"
            )
            continue
        if same:
            notes.append(
                f"{point.shape.ranks} GPUs stand there with several figures: all of them count"
            )
        kept.append(point)
    return kept, notes


def _points(row: Mapping[str, Any], fields: Fields, peak: float | None, where: str) -> list[Point]:
    """The points of one row: one for each schedule where its figure is an object."""
    points = []
    try:
        figures = measured(row, str(fields.shared.get("metric", "")))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    for schedule, figure in figures:
        shape = shape_of({**row, "schedule": schedule} if schedule else row, fields, where)
        bubbles = row.get("bubble_rate_profiled")
        bubble = bubbles.get(schedule) if isinstance(bubbles, Mapping) else None
        step_s = _seconds(figure, shape, peak, where)
        points.append(Point(shape=shape, step_s=step_s, bubble=bubble, row=row))
    return points


def _seconds(figure: Measure | None, shape: Shape, peak: float | None, where: str) -> float | None:
    if figure is None:
        return None
    try:
        return figure.step_s(shape, peak)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
