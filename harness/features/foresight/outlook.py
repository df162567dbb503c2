"""Predict a size that a table lacks: its efficiency, what would raise it, and what to
measure next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.base.errors import SpecError
from harness.features.foresight.advise import Advice, advise
from harness.features.foresight.invert import Knee, LeverResult, hold, knee
from harness.features.foresight.learned import Regime, learned
from harness.features.foresight.prediction import Predicted, base_of, calibrate, predict
from harness.features.foresight.published.table import PublishedTable
from harness.features.foresight.shapes import Point, Shape


class MissingInputError(ValueError):
    """Raised if the user must state more facts before a size can be predicted."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The prediction for one size, with advice.

    ``hold`` is the requested efficiency, and ``held`` states how each knob could reach it. ``knee``
    is the size at which another overhead becomes the largest, or None. ``advice`` is the size to
    measure next. A prediction from the number of ranks alone has none of these three.
    ``device_hours`` is the time of all devices together, in hours, that a billion
    tokens take, or a billion samples if a sample is not text. ``memory_bytes`` is the memory that a
    rank needs and ``room_bytes`` the memory that it has; each is None if unknown. ``padding`` is
    the ratio of the bytes of all shards at this size and at the largest calibrated size.
    ``measured`` maps calibrated sizes of this model to efficiencies. ``path`` holds predictions for
    sizes between the largest calibrated one and the target. ``bounded`` says whether the measured
    sizes suffice for an interval.
    """

    table: str
    predicted: Predicted
    hold: float
    held: Sequence[LeverResult]
    knee: Knee | None
    advice: Advice | None
    device_hours: float
    measured: Mapping[int, float]
    path: Sequence[Predicted]
    memory_bytes: int | None = None
    room_bytes: float | None = None
    padding: float = 1.0
    bounded: bool = True

    @property
    def fits(self) -> bool:
        """Return whether a rank fits into its memory; True if that is unknown."""
        known = self.memory_bytes is not None and self.room_bytes is not None
        return not known or (self.memory_bytes or 0) <= (self.room_bytes or 0)


def outlooks(table: PublishedTable, ranks: int, efficiency: float) -> list[Outlook]:
    """Return the prediction at ``ranks`` for each calibrated model and configuration of a table.

    If the table lists this size without a measurement, its shape is used as it is. Otherwise the
    shape follows from the largest calibrated size: the batch per GPU stays the same, or the global
    batch if all calibrated sizes share it. Raise MissingInputError if the user must state more
    facts first, and SpecError if ``ranks`` cannot be divided as the calibrated sizes are.
    """
    taught = learned(leaving_out=table.family)
    calibrated = [point for point in table.points if point.calibrates]
    asked_for = [
        point for point in table.points if point.step_s is None and point.shape.ranks == ranks
    ]
    foreseen = []
    for shape in dict.fromkeys(_largest(point, calibrated) for point in calibrated):
        alike = [point for point in calibrated if point.shape.configuration == shape.configuration]
        target = next(
            (point for point in asked_for if _alike(point, shape)),
            Point(shape=_at(shape, ranks, [point.shape for point in alike]), step_s=None),
        )
        between = [Point(shape=s, step_s=None) for s in _between(shape, target.shape, alike)]
        asked = replace(table, points=(*alike, *between, target))
        made = predict(asked, taught)
        for refused in made.refused:
            if refused.shape == target.shape:
                raise MissingInputError(f"{ranks} ranks: {refused.why}")
        path = [size for size in made.predicted if size.shape != target.shape]
        size = next(size for size in made.predicted if size.shape == target.shape)
        known = calibrate(asked, alike, [target], taught)
        base = base_of(target.shape, alike)
        by_terms = size.regime is not Regime.CURVE
        foreseen.append(
            Outlook(
                table=table.id,
                predicted=size,
                hold=efficiency,
                held=hold(known, base.shape, target.shape, efficiency) if by_terms else (),
                knee=knee(known, target.shape) if by_terms else None,
                advice=advise(known, target.shape) if by_terms else None,
                device_hours=_device_hours(size),
                measured=_measured(base, alike),
                path=path,
            )
        )
    return foreseen


def _measured(base: Point, calibrated: Sequence[Point]) -> dict[int, float]:
    """Return the best efficiency of each calibrated size, relative to the base."""
    assert base.step_s is not None
    unit = base.shape.rate(base.step_s)
    efficiencies = dict[int, float]()
    for p in sorted(calibrated, key=lambda point: point.shape.ranks):
        if p.step_s and p.shape.model == base.shape.model:
            rate = p.shape.rate(p.step_s) / unit
            efficiencies[p.shape.ranks] = max(rate, efficiencies.get(p.shape.ranks, 0.0))
    return efficiencies


def _between(largest: Shape, target: Shape, calibrated: Sequence[Point]) -> list[Shape]:
    """Return the sizes below the target that are doublings of the largest calibrated size.

    The list is empty if the two sizes have different tensor, context or pipeline groups.
    """
    if (largest.tensor, largest.context, largest.stages) != (
        target.tensor,
        target.context,
        target.stages,
    ):
        return []
    sizes = [largest.ranks << i for i in range(1, 24) if largest.ranks << i < target.ranks]
    return [_at(largest, size, [point.shape for point in calibrated]) for size in sizes]


def _device_hours(predicted: Predicted) -> float:
    """Return the time of all devices together, in hours, that a billion tokens take."""
    tokens = predicted.shape.samples * predicted.shape.seq
    return predicted.step_s * predicted.shape.ranks / 3600 * 1e9 / tokens


def _alike(point: Point, shape: Shape) -> bool:
    return (point.shape.model, point.shape.configuration) == (shape.model, shape.configuration)


def _largest(point: Point, calibrated: Sequence[Point]) -> Shape:
    alike_shapes = [p.shape for p in calibrated if _alike(p, point.shape)]
    return max(alike_shapes, key=lambda shape: shape.ranks)


def _at(shape: Shape, ranks: int, calibrated: Sequence[Shape]) -> Shape:
    """Return the shape at another number of ranks, with the batch that the calibrated
    sizes imply.
    """
    inner = shape.tensor * shape.context * shape.stages
    if ranks % inner:
        raise SpecError(
            f"--to {ranks} is not a multiple of tp x pp x cp = {inner}",
            expected=f"a multiple of {inner}",
            fix=f"--to {inner * max(1, ranks // inner)}",
        )
    of_model = [s for s in calibrated if s.model == shape.model]
    sizes = {s.ranks for s in of_model}
    batches = {round(s.samples, 3) for s in of_model}
    if len(sizes) < 2 or len(batches) > 1:
        return replace(shape, ranks=ranks)
    of_replica = shape.samples * inner / ranks
    micros = max(1, round(of_replica / shape.micro_batch))
    return replace(shape, ranks=ranks, micros=micros, micro_batch=of_replica / micros)
