"""Read published scaling sweeps: tables of points, each with a shape and one measured figure.

``docs/foresight.md`` lists the fields. Fields that are not understood are reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.cases.metrics import IMPLAUSIBLE
from harness.features.foresight import claims
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.priors import Belief
from harness.features.foresight.published.files import cell_value, documents
from harness.features.foresight.published.headings import by_variant, field_name
from harness.features.foresight.published.measures import Measure, Unit, measured, unit_of
from harness.features.foresight.published.reading import (
    ASSUMED,
    CONFIGURATION,
    Fields,
    fabric_of,
    shape_of,
)
from harness.features.foresight.published.splitting import calibrating
from harness.features.foresight.shapes import Point, Shape
from harness.features.foresight.terms import Unknown

#: Roles of tables that are not scaling sweeps of measured sizes. They are predicted only on
#: request.
ASIDE = ("context", "simulator_cross_check")


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One scaling sweep on one machine."""

    id: str
    family: str
    fabric: Fabric
    peak_flops: float | None
    points: tuple[Point, ...]
    role: str = ""
    #: Beliefs from additional measurements. They replace the beliefs learned from other sweeps.
    beliefs: Mapping[Unknown, Belief] = field(default_factory=dict)
    #: Factor by which the intervals of this table are widened, in addition to the learned stretch.
    stretch: float = 1.0
    #: Assumptions that were made, and fields that were ignored.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A table for which no prediction is possible, and the reason."""

    id: str
    why: str


def read(path: Path) -> list[PublishedTable | Refused]:
    """Read the tables of a file, in its order.

    A table that cannot be used is returned as Refused, so that one bad table does not affect the
    others. Raise SpecError if the file is not of this format.
    """
    fix = "scaleproof predict --table results/published/scaling.json"
    return [_tried(table, n, path) for n, table in enumerate(documents(path, fix))]


def families_of(paths: Iterable[Path]) -> dict[str, list[PublishedTable]]:
    """Return the scaling sweeps of several files, grouped by source."""
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
        raise ValueError("the table is not an object with points")
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
    rows = by_variant(rows)
    doubts: list[str] = []
    if not {"calibrate_on", "hardware", "model"} & table.keys():
        rows, doubts = _by_sweep(table, rows)
    rows = [{field_name(str(key)): value for key, value in row.items()} for row in rows]
    rows = [  # configurations are compared as written, because torch 2.10 is not 2.1
        {name: value if name in CONFIGURATION else cell_value(value) for name, value in row.items()}
        for row in rows
    ]
    hardware = table.get("hardware") or _one_gpu(rows)
    if not isinstance(hardware, Mapping):
        raise ValueError("hardware is not an object")
    fabric, peak, assumed = fabric_of(hardware)
    fields = Fields(shared=shared, per_node=fabric.per_node, notes=list(assumed))
    points, unread = _readable(rows, fields, peak)
    if _divides_its_work(points, fields):
        most = max(point.shape.ranks for point in points)
        fields = replace(fields, shared={**shared, "global_batch": most}, notes=list(assumed))
        points, unread = _readable(rows, fields, peak)
        fields.notes.append(
            "no batch is stated, and steps become shorter with more GPUs: one batch for all GPUs"
            " together is assumed (strong scaling)"
        )
    points, twice = _once(points)
    chosen, calibrated_on = calibrating(
        points, table.get("calibrate_on"), table.get("role") in ASIDE
    )
    points = [replace(p, calibrates=c) for p, c in zip(points, chosen, strict=True)]
    notes = [*broken, *doubts, *unread, *fields.notes, *twice, *calibrated_on, *fields.unknown()]
    return PublishedTable(
        id=name,
        family=str(table.get("family") or table.get("source") or name),
        fabric=fabric,
        peak_flops=peak,
        points=tuple(points),
        role=str(table.get("role", "")),
        notes=tuple(dict.fromkeys(notes)),
    )


def _by_sweep(
    table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the rows with the sweep to which each belongs, and notes on rows left out.

    Sweeps are those of ``verify table``. Rows that may belong to several sweeps are left out.
    Raise ValueError if no row is left.
    """
    stated = claims.stated_table(table)
    if len(stated.kinds) != len(rows):
        return list(rows), []
    kept = [
        {**row, "sweep": kind} if kind else row
        for row, kind in zip(rows, stated.kinds, strict=True)
        if kind not in stated.doubts
    ]
    notes = [
        f"rows that may belong to several sweeps are left out: {why}"
        for why in dict.fromkeys(stated.doubts.values())
    ]
    if not kept:
        raise ValueError(
            notes[0].replace("rows that may", "its rows may").replace(" are left out", "")
        )
    return kept, notes


def _divides_its_work(points: Sequence[Point], fields: Fields) -> bool:
    """Return whether steps become so short with more GPUs that each one must have less work.

    This is known only if the table states no batch and the times of steps, not rates.
    """
    timed = [p for p in points if p.step_s and _has_step_time(p.row)]
    if len(timed) < 2 or ASSUMED not in fields.notes:
        return False
    small, large = (end(timed, key=lambda p: p.shape.ranks) for end in (min, max))
    assert small.step_s is not None and large.step_s is not None
    return large.shape.rate(large.step_s) > IMPLAUSIBLE * small.shape.rate(small.step_s)


def _has_step_time(row: Mapping[str, Any]) -> bool:
    return any((unit := unit_of(name)) is not None and unit[0] is Unit.STEP for name in row)


def _one_gpu(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the GPU that all rows name, because text tables cannot state their machine
    elsewhere.
    """
    names = {str(row.get("gpu") or "") for row in rows}
    return {"gpu": names.pop()} if len(names) == 1 else {}


def _once(points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """Return the points without duplicates, and notes on sizes that are listed twice.

    A copied figure is not a second measurement. Counting it twice would make intervals too narrow.
    """
    kept = list[Point]()
    notes = list[str]()
    for point in points:
        same = [p for p in kept if p.shape == point.shape]
        if any(p.step_s == point.step_s for p in same):
            notes.append(
                f"{point.shape.ranks} GPUs are listed twice with the same figure, which counts once"
            )
            continue
        if same:
            notes.append(
                f"{point.shape.ranks} GPUs are listed with several figures, which all count"
            )
        kept.append(point)
    return kept, notes


class UnreadFigureError(ValueError):
    """The error for a row whose figure is no number, such as ``N/A``."""


def _readable(
    rows: Sequence[Mapping[str, Any]], fields: Fields, peak: float | None
) -> tuple[list[Point], list[str]]:
    """Return the points of all rows, and notes on rows that are left out.

    A row is left out if its figure is no number. Raise ValueError if no row is left.
    """
    points: list[Point] = []
    errors: list[UnreadFigureError] = []
    for number, row in enumerate(rows, 1):
        try:
            points += _points(row, fields, peak, f"point {number}")
        except UnreadFigureError as error:
            errors.append(error)
    if errors and not points:
        raise errors[0]
    return points, [f"{error}: this row is left out" for error in errors]


def _points(row: Mapping[str, Any], fields: Fields, peak: float | None, where: str) -> list[Point]:
    """Return the points of one row.

    If the figure of the row is an object, it has one point for each schedule.
    """
    points = []
    try:
        figures = measured(row, str(fields.shared.get("metric", "")))
    except ValueError as error:
        raise UnreadFigureError(f"{where}: {error}") from None
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
