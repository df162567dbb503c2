"""A size that a table does not have: what to expect, what would hold it, what to measure next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.base.errors import SpecError
from harness.features.foresight.advise import Advice, advise
from harness.features.foresight.invert import Held, Knee, hold, knee
from harness.features.foresight.learned import learned
from harness.features.foresight.predict import Predicted, base_of, calibrate, predict
from harness.features.foresight.published.table import PublishedTable
from harness.features.foresight.shapes import Point, Shape


class MissingInputError(ValueError):
    """Raised where something has to be stated before a size can be foreseen."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """``knee`` is where another overhead becomes the largest, None where none does.

    ``advice`` is the size to measure next. ``hold`` is the efficiency that ``held`` is about.
    ``device_hours`` are those of a billion tokens (of samples where a sample is no text).
    ``memory_bytes`` is what a rank needs, ``room_bytes`` what it has; None where nobody knows.
    ``padding`` is by how much shards are larger together than at the largest calibrated size.
    ``measured`` are efficiencies of this model's calibrated sizes, ``path`` has what is foreseen of
    sizes between.
    """

    table: str
    predicted: Predicted
    hold: float
    held: Sequence[Held]
    knee: Knee | None
    advice: Advice
    device_hours: float
    measured: Mapping[int, float]
    path: Sequence[Predicted]
    memory_bytes: int | None = None
    room_bytes: float | None = None
    padding: float = 1.0

    @property
    def fits(self) -> bool:
        """Whether a rank finds its memory, as far as that is known."""
        known = self.memory_bytes is not None and self.room_bytes is not None
        return not known or (self.memory_bytes or 0) <= (self.room_bytes or 0)


def outlooks(table: PublishedTable, ranks: int, efficiency: float) -> list[Outlook]:
    """Of every model and configuration of a table that was calibrated.

    A size of the table that was not measured is taken as it stands. Else each gets what it had at
    its largest calibrated size: the same batch of a GPU, or the same batch of all where its
    calibrated sizes share one. UnsaidError where something has to be stated first, SpecError where
    ``ranks`` can't be cut so.
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
        foreseen.append(
            Outlook(
                table=table.id,
                predicted=size,
                hold=efficiency,
                held=hold(known, base.shape, target.shape, efficiency),
                knee=knee(known, target.shape),
                advice=advise(known, target.shape),
                device_hours=_device_hours(size),
                measured=_measured(base, alike),
                path=path,
            )
        )
    return foreseen


def _measured(base: Point, calibrated: Sequence[Point]) -> dict[int, float]:
    """Efficiencies of the calibrated sizes, the best of each, against the base."""
    assert base.step_s is not None
    unit = base.shape.rate(base.step_s)
    efficiencies = dict[int, float]()
    for p in sorted(calibrated, key=lambda point: point.shape.ranks):
        if p.step_s and p.shape.model == base.shape.model:
            rate = p.shape.rate(p.step_s) / unit
            efficiencies[p.shape.ranks] = max(rate, efficiencies.get(p.shape.ranks, 0.0))
    return efficiencies


def _between(largest: Shape, target: Shape, calibrated: Sequence[Point]) -> list[Shape]:
    """Doublings of the largest calibrated size, below the target, that are cut like both."""
    if (largest.tensor, largest.context, largest.stages) != (
        target.tensor,
        target.context,
        target.stages,
    ):
        return []
    sizes = [largest.ranks << i for i in range(1, 24) if largest.ranks << i < target.ranks]
    return [_at(largest, size, [point.shape for point in calibrated]) for size in sizes]


def _device_hours(predicted: Predicted) -> float:
    """Of a billion tokens."""
    tokens = predicted.shape.samples * predicted.shape.seq
    return predicted.step_s * predicted.shape.ranks / 3600 * 1e9 / tokens


def _alike(point: Point, shape: Shape) -> bool:
    return (point.shape.model, point.shape.configuration) == (shape.model, shape.configuration)


def _largest(point: Point, calibrated: Sequence[Point]) -> Shape:
    alike_shapes = [p.shape for p in calibrated if _alike(p, point.shape)]
    return max(alike_shapes, key=lambda shape: shape.ranks)


def _at(shape: Shape, ranks: int, calibrated: Sequence[Shape]) -> Shape:
    """The shape at another number of ranks."""
    inner = shape.tensor * shape.context * shape.stages
    if ranks % inner:
        raise SpecError(
            f"--to {ranks}: it is no multiple of tp x pp x cp = {inner}",
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
