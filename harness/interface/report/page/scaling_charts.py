"""Chart speedup and efficiency over ranks, and list the same values as a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.analysis.judging.points import points
from harness.analysis.ladder import LadderRow
from harness.analysis.results import results_of
from harness.cases import Plan
from harness.interface.report.page import svg
from harness.interface.report.page.svg import Curve
from harness.interface.report.scaling import twin
from harness.interface.report.tabled import Table
from harness.record import RunRecord, ScalingPoint


@dataclass(frozen=True, kw_only=True)
class ChartGroup:
    """The charts and the table of all scaling sweeps with one mode.

    Sweeps on simulated devices are in a separate group.
    """

    title: str
    charts: Sequence[tuple[str, Markup]]
    table: Table[LadderRow]


def groups(run: RunRecord) -> list[ChartGroup]:
    """Return two charts (speedup, efficiency) per mode, separately for simulated devices."""
    by_kind: dict[tuple[bool, str], list[Plan]] = {}
    for plan in run.plans:
        if len(points(run, plan)) > 1:
            case = plan.arms[0].case
            by_kind.setdefault((bool(case.stand_in), str(case.mode)), []).append(plan)
    return [
        _group(run, mode, stand_in, by_kind[stand_in, mode]) for stand_in, mode in sorted(by_kind)
    ]


def speedup(run: RunRecord) -> str:
    """Return the first chart of a run's page as a standalone SVG file.

    Return an empty text if the run has no scaling sweep.
    """
    drawn = next((str(group.charts[0][1]) for group in groups(run)), "")
    if not drawn:
        return ""
    style = (
        "<style>svg{background:#fff;font-family:sans-serif}.grid{stroke:#ddd}"
        ".tick,.legend,.label{font-size:12px;fill:#333}.asked{stroke-width:2.5}</style>"
    )
    drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    head, close, rest = drawn.partition(">")
    return f"{head}{close}{style}{rest}"


def _group(run: RunRecord, mode: str, stand_in: bool, plans: Sequence[Plan]) -> ChartGroup:
    names = list(_names(plans))
    rungs = [points(run, plan) for plan in plans]
    grid = sorted({float(point.world_size) for ladder in rungs for point in ladder})
    none: list[float | None] = [None] * len(grid)
    title = f"{mode} scaling" + (" · simulated" if stand_in else "")
    charts = []
    for field, unit, ideal in (
        ("speedup", "x over the baseline", grid),
        ("efficiency", "share of ideal speedup", [1.0] * len(grid)),
    ):
        curves = [
            _series(run, plan, name, ladder, field)
            for plan, name, ladder in zip(plans, names, rungs, strict=True)
        ]
        best = Curve(name="ideal", x=grid, y=ideal, low=none, high=none)
        drawn = svg.chart(
            curves,
            y_label=f"{field}, {unit}",
            x_label="ranks",
            ideal=best,
            log=field == "speedup",
        )
        charts.append((f"{field.capitalize()}, {title}", Markup(drawn)))
    return ChartGroup(title=title, charts=charts, table=twin(run, plans))


def _names(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the names of the sweeps. Plans with the same name get the names of their cases."""
    often = Counter(plan.name for plan in plans)
    for plan in plans:
        case = plan.arms[-1].case
        yield plan.name if often[plan.name] == 1 else case.family + case.extras


def _series(
    run: RunRecord, plan: Plan, name: str, points: Sequence[ScalingPoint], field: str
) -> Curve:
    """Return one field of the points as a curve: intervals, bounds of its thresholds, verdicts."""

    def column(suffix: str) -> list[Any]:
        return [getattr(point, field + suffix) for point in points]

    rules = {threshold.name: threshold for threshold in run.thresholds}
    bounds, labels = [], []
    for point in points:
        judged = [
            result
            for result in results_of(run, plan.hash)
            if result.case == point.case
            and result.metric == field
            and result.rule in rules
            and result.against == point.against
        ]
        ends = [
            (rules[result.rule].at_least, rules[result.rule].at_most)
            for result in judged
            if result.rule
        ]
        bounds += [(float(point.world_size), b) for pair in ends for b in pair if b is not None]
        labels.append(", ".join(f"{result.status} {result.bound}" for result in judged))
    return Curve(
        name=name,
        x=[float(point.world_size) for point in points],
        y=column(""),
        low=column("_low"),
        high=column("_high"),
        bounds=bounds,
        outcomes=labels,
    )
