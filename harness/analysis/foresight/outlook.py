"""A size that a table does not have: what to expect, what would hold it, what to measure next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis.foresight.advise import Advice, advise
from harness.analysis.foresight.invert import Held, hold, knee
from harness.analysis.foresight.learned import learned
from harness.analysis.foresight.predict import Predicted, base_of, calibrate, predict
from harness.analysis.foresight.published.table import Table
from harness.analysis.foresight.shapes import Point, Shape
from harness.base.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """``knee`` is the size from which on another term limits, None where there is none.

    ``advice`` is the size to measure next. ``hold`` is the efficiency that ``held`` is about.
    """

    table: str
    predicted: Predicted
    hold: float
    held: Sequence[Held]
    knee: int | None
    advice: Advice


def outlooks(table: Table, ranks: int, efficiency: float) -> list[Outlook]:
    """Of every model and configuration of a table that was calibrated.

    Each gets what it had at its largest calibrated size: the same batch of a GPU, or the same
    batch of all where its calibrated sizes share one. SpecError where ``ranks`` can't be cut so.
    """
    taught = learned(leaving_out=table.family)
    calibrated = [p for p in table.points if p.calibrates]
    out = []
    for shape in dict.fromkeys(_largest(p, calibrated) for p in calibrated):
        own = [p for p in calibrated if p.shape.configuration == shape.configuration]
        target = Point(shape=_at(shape, ranks, [p.shape for p in own]), step_s=None)
        asked = replace(table, points=(*own, target))
        (one,) = predict(asked, taught).predicted
        known = calibrate(asked, own, [target], taught)
        base = base_of(target.shape, own)
        out.append(
            Outlook(
                table=table.id, predicted=one, hold=efficiency,
                held=hold(known, base.shape, target.shape, efficiency),
                knee=knee(known, target.shape), advice=advise(known, target.shape),
            )
        )  # fmt: skip
    return out


def _alike(point: Point, shape: Shape) -> bool:
    return (point.shape.model, point.shape.configuration) == (shape.model, shape.configuration)


def _largest(point: Point, calibrated: Sequence[Point]) -> Shape:
    own = [p.shape for p in calibrated if _alike(p, point.shape)]
    return max(own, key=lambda s: s.ranks)


def _at(shape: Shape, ranks: int, calibrated: Sequence[Shape]) -> Shape:
    """The shape at another number of ranks."""
    inner = shape.tensor * shape.context * shape.stages
    if ranks % inner:
        raise SpecError(
            f"--to {ranks}: it is no multiple of tp x pp x cp = {inner}",
            expected=f"a multiple of {inner}", fix=f"--to {inner * max(1, ranks // inner)}",
        )  # fmt: skip
    own = [s for s in calibrated if s.model == shape.model]
    sizes, batches = {s.ranks for s in own}, {round(s.samples, 3) for s in own}
    if len(sizes) < 2 or len(batches) > 1:
        return replace(shape, ranks=ranks)
    of_replica = shape.samples * inner / ranks
    micros = max(1, round(of_replica / shape.micro_batch))
    return replace(shape, ranks=ranks, micros=micros, micro_batch=of_replica / micros)
