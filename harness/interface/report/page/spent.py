"""Show where the time went: the parts of a step, and the losses from ideal to measured step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from markupsafe import Markup

from harness.analysis.rungs import Rung, nearest, rungs
from harness.analysis.timeline.losses import WORDS
from harness.interface.report import timeline
from harness.interface.report.page import drawings, svg
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column
from harness.record import Budget, RunRecord, Term

#: The name of a world size and the time budget that was profiled at it.
Named: TypeAlias = tuple[str, Budget]

#: A line width, in characters, above the length of any sentence, because the browser wraps lines.
WIDE = 10_000
#: The palette by Okabe and Ito, and grey for time in which a rank does nothing.
_COLORS = {
    Term.COMPUTE: "#0072B2",
    Term.MOVE: "#56B4E9",
    Term.TRANSFER: "#D55E00",
    Term.WAIT: "#CC79A7",
    Term.BUBBLE: "#E69F00",
    Term.UNDIVIDED: "#D55E00",
    Term.DATA: "#009E73",
    Term.LAUNCH: "#F0E442",
    Term.IDLE: "#9aa0a6",
    Term.OTHER: "#5f6368",
}
#: The colours of terms by their names in a chart.
COLORS = {timeline.TERMS[term]: color for term, color in _COLORS.items()}
_FALLING = {WORDS[term]: color for term, color in _COLORS.items()}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The profiled world sizes of one scaling sweep.

    ``apart`` is not empty if the profiled steps differ from the timed steps.
    """

    title: str
    anchor: str
    against: str
    perturbation: float
    refused: bool
    apart: str
    remarks: Sequence[Sequence[str]]
    timed_ms: float | None
    stacked: Markup
    waterfall: Markup
    table: Table[Named]


def spent(run: RunRecord, anchors: Mapping[str, str]) -> list[Spent]:
    """Return the profiled scaling sweeps, largest loss first; those without an explanation last.

    ``anchors`` maps a case's hash to its anchor in the page.
    """
    worst_first = sorted(
        rungs(run), key=lambda r: (r.refused or bool(r.apart), float(r.losses.efficiency))
    )
    budgets_of = [_budgets(run, rung) for rung in worst_first]
    most_ns = max((budget.step_ns for every in budgets_of for _, budget in every), default=0.0)
    return [
        _spent(run, rung, seen, anchors.get(rung.arm.case.hash, ""), most_ns / 1e6)
        for rung, seen in zip(worst_first, budgets_of, strict=True)
    ]


def ranks(budget: Budget, ideal_ns: Fraction | None = None) -> Markup:
    """Return a bar for every rank of one profiled window, or 8 + 8 of more than 16 ranks.

    The dashed line is the step time that the baseline allows.
    """
    few = budget.ranks if len(budget.ranks) <= 16 else [*budget.ranks[:8], *budget.ranks[-8:]]
    bars = [svg.Bar(name=f"rank {r.rank}", parts=_parts(r.mean_ns)) for r in few]
    mark = None if ideal_ns is None else float(ideal_ns) / 1e6
    return Markup(svg.stacked(bars, COLORS, unit="ms", mark=mark))


def _parts(mean_ns: Callable[[Term], float]) -> list[tuple[str, float]]:
    return [(timeline.TERMS[term], mean_ns(term) / 1e6) for term in _COLORS]


def _budgets(run: RunRecord, rung: Rung) -> list[Named]:
    """Return the budget of every profiled world size of a sweep.

    If a case has several profiled launches, take the one whose step is closest to the timed steps.
    """
    launches = [(arm, nearest(run, arm.case)) for arm in rung.plan.arms]
    return [
        ("plain" if arm.case.plain else arm.case.world, launch.budget)
        for arm, launch in launches
        if launch is not None and launch.budget is not None
    ]


def _spent(run: RunRecord, rung: Rung, seen: Sequence[Named], anchor: str, most_ms: float) -> Spent:
    bars = [svg.Bar(name=name, parts=_parts(budget.mean_ns)) for name, budget in seen]
    losses = rung.losses
    parts = [(WORDS[term], float(value) / 1e6) for term, value in losses.excess_ns.items()]
    parts = [part for part in parts if abs(part[1]) >= 0.005 * float(losses.step_ns) / 1e6]
    rest = float(losses.step_ns - losses.ideal_ns) / 1e6 - sum(v for _, v in parts)
    parts.sort(key=lambda p: -p[1])
    if abs(rest) >= 0.005:
        parts.append(("all other", rest))
    fall = drawings.WaterfallChart(
        start=("ideal step", float(losses.ideal_ns) / 1e6),
        parts=parts,
        end=("real step", float(losses.step_ns) / 1e6),
    )
    return Spent(
        title=rung.arm.case.id,
        anchor=anchor,
        against=rung.against,
        perturbation=rung.perturbation,
        refused=rung.refused,
        remarks=[line.split(maxsplit=1) for line in timeline.of_rung(run, rung, WIDE, named=False)],
        apart=timeline.unexplained(rung) if rung.apart else "",
        timed_ms=None if rung.timed_ns is None else rung.timed_ns / 1e6,
        stacked=Markup(
            svg.stacked(bars, COLORS, unit="ms", mark=float(losses.ideal_ns) / 1e6, most=most_ms)
        ),
        waterfall=Markup(
            drawings.waterfall(fall, _FALLING | {"all other": "var(--soft)"}, unit="ms")
        ),
        table=_table(seen),
    )


def _table(seen: Sequence[Named]) -> Table[Named]:
    """Return the values of the chart: ms of each term in a step, as a mean over steps and ranks."""
    terms = [t for t in _COLORS if any(budget.total_ns(t) for _, budget in seen)]

    def column(term: Term) -> Column[Named]:
        def value(row: Named) -> float:
            return row[1].mean_ns(term) / 1e6

        return Column(timeline.TERMS[term], 9, lambda row: f"{value(row):.2f}", raw=value)

    return Table(
        columns=[
            Column[Named]("ranks", 9, lambda row: row[0], left=True),
            Column(
                "ms/step",
                9,
                lambda row: f"{row[1].step_ns / 1e6:.2f}",
                raw=lambda row: row[1].step_ns / 1e6,
            ),
            *map(column, terms),
        ],
        rows=seen,
    )
