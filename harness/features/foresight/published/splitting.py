"""Choose the points of a table for calibration; the others are predicted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from harness.features.foresight.physics.schedules import schedule_of
from harness.features.foresight.shapes import Point


def calibrating(points: Sequence[Point], asked: Any, aside: bool) -> tuple[list[bool], list[str]]:
    """Return whether each point calibrates, and notes on how ``asked`` was interpreted.

    ``asked`` holds sizes, objects of fields that a row must have, or words such as "1F1B at the
    largest microbatch count". If it is empty, the smallest sizes of each configuration calibrate.
    Raise ValueError if no point is left for calibration.
    """
    notes: list[str] = []
    if isinstance(asked, str):
        chosen, notes = _by_words(points, asked)
    elif isinstance(asked, Mapping):
        chosen = [_has(point, asked) for point in points]
    elif isinstance(asked, Sequence) and asked:
        chosen = [any(_is(point, wanted) for wanted in asked) for point in points]
    elif asked is None or asked == []:
        if aside:
            raise ValueError("its role is not development, and calibrate_on is missing")
        chosen = _smallest(points)
        notes = ["calibrated on the smallest sizes, because the table does not state calibrate_on"]
    else:
        raise ValueError(f"calibrate_on is {asked!r}, expected sizes, objects or words")
    chosen = [c and p.step_s is not None for c, p in zip(chosen, points, strict=True)]
    if not any(chosen):
        raise ValueError(f"no measured point is one of calibrate_on = {asked!r}")
    return chosen, notes


def _is(point: Point, value: Any) -> bool:
    return _has(point, value) if isinstance(value, Mapping) else value == point.shape.ranks


def _has(point: Point, wanted: Mapping[str, Any]) -> bool:
    """Return whether a row has these fields; a list means any of its values."""
    return all(
        point.row.get(name, point.shape.ranks if name == "N" else None)
        in (value if isinstance(value, list) else [value])
        for name, value in wanted.items()
    )


def _by_words(points: Sequence[Point], words: str) -> tuple[list[bool], list[str]]:
    """Return which points match words: a schedule, or the most or fewest micro-batches
    per model.
    """
    schedule = schedule_of(words)
    low = words.lower()
    if schedule is None and "micro" not in low and not any(c.isdigit() for c in low):
        raise ValueError(f"calibrate_on is {words!r}, expected a size, a schedule or micro-batches")
    of_schedule = [schedule in (None, p.shape.schedule) for p in points]
    if "micro" not in low:
        return of_schedule, [f"calibrate_on is read as: every {schedule}"]
    end = min if "smallest" in low or "fewest" in low else max
    counts: dict[Any, list[int]] = defaultdict(list)
    for point, fits in zip(points, of_schedule, strict=True):
        counts[point.shape.model] += [point.shape.micros] if fits else []
    chosen = [
        fits and p.shape.micros == end(counts[p.shape.model])
        for p, fits in zip(points, of_schedule, strict=True)
    ]
    ends = "fewest" if end is min else "most"
    return chosen, [
        f"calibrate_on is read as: {schedule or 'every schedule'}, {ends} micro-batches"
    ]


def _smallest(points: Sequence[Point]) -> list[bool]:
    """Return which points belong to the two smallest sizes of a model and configuration.

    Only the smallest one counts if there are at most two sizes.
    """
    sizes: dict[Any, set[int]] = defaultdict(set)
    for point in points:
        if point.step_s is not None:
            sizes[point.shape.model, point.shape.configuration].add(point.shape.ranks)
    least = {key: sorted(size)[: 2 if len(size) > 2 else 1] for key, size in sizes.items()}
    return [p.shape.ranks in least.get((p.shape.model, p.shape.configuration), []) for p in points]
