"""Collect the figures of a run for other programs, each with its interval."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.analysis.ladder import arm_row
from harness.analysis.results import results
from harness.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a case; ``low`` and ``high`` are its 95 % interval, or None if it has none."""

    case: str
    measure: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    stand_in: bool = False


def figures(run: RunRecord) -> Iterator[Figure]:
    """Yield the throughput and the step time of every measured case, and every efficiency."""
    known_measures = set()
    for plan in run.plans:
        for arm in plan.arms:
            row = arm_row(run, plan, arm)
            stand_in = bool(run.stand_ins(arm.case))
            for measure, unit, value in (
                ("throughput", "samples/s", row.throughput),
                ("step time", "s", row.step_s),
            ):
                if value is not None and (arm.case.id, measure) not in known_measures:
                    known_measures.add((arm.case.id, measure))
                    yield Figure(
                        case=arm.case.id,
                        measure=measure,
                        unit=unit,
                        value=value,
                        stand_in=stand_in,
                    )
    for result in results(run):
        if result.metric == "efficiency" and result.value is not None:
            yield Figure(
                case=result.case,
                measure=f"efficiency v {result.against}",
                unit="1",
                value=result.value,
                low=result.low,
                high=result.high,
                stand_in=result.stand_in,
            )
