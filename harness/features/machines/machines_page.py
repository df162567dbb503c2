"""Render a comparison of machines as one self-contained page, like the page of a run."""

import json
from pathlib import Path

from markupsafe import Markup

from harness.base.documents import to_doc
from harness.features.machines import machines_table as hardware
from harness.features.machines.machines import HardwareComparison, MachineEntry
from harness.interface.report import timeline
from harness.interface.report.page import svg
from harness.interface.report.page.spent import COLORS
from harness.interface.report.page.svg import Curve
from harness.interface.report.templates import templates

HERE = Path(__file__).parent


def render(comparison: HardwareComparison) -> str:
    """Return the page: headline, machines, charts, cases, totals, lost time, and notes."""
    data = json.dumps(to_doc(comparison), separators=(",", ":")).replace("<", "\\u003c")
    return (
        templates(HERE)
        .get_template("hardware.html.jinja")
        .render(
            headline=hardware.headline(comparison),
            sides=comparison.sides,
            purchase=hardware.purchase(comparison),
            ceilings=hardware.sides(comparison).html("machines"),
            differs=comparison.differs,
            charts=_charts(comparison),
            entries=hardware.entries(comparison).html("cases"),
            totals=hardware.totals(comparison).html("all devices of each machine"),
            spent=_spent(comparison),
            lost=hardware.lost(comparison).html("parts of the steps"),
            notes=[*hardware.notes(comparison)[1:], *hardware.meanings(comparison)],
            data=Markup(data),
        )
    )


def _charts(comparison: HardwareComparison) -> list[tuple[str, Markup]]:
    """Return one chart for each scaling sweep.

    The y axis is the metric of each machine relative to the first machine, with its interval. The
    x axis is the number of ranks.
    """
    names = {side.name: hardware.named(side, comparison.sides) for side in comparison.sides}
    ladders: dict[str, dict[str, list[MachineEntry]]] = {}
    for entry in comparison.entries:
        if entry.point is not None and entry.ratio is not None:
            ladder = ladders.setdefault(entry.case.family + entry.case.extras, {})
            ladder.setdefault(entry.side, []).append(entry)
    charts = []
    for name, of_sides in ladders.items():
        curves = []
        for side, entries in of_sides.items():
            ranked = sorted(entries, key=lambda entry: entry.case.world_size)
            curves.append(
                Curve(
                    name=names[side],
                    x=[float(entry.case.world_size) for entry in ranked],
                    y=[entry.ratio or 0.0 for entry in ranked],
                    low=[entry.low for entry in ranked],
                    high=[entry.high for entry in ranked],
                    outcomes=[entry.case.world for entry in ranked],
                )
            )
        ranks = sorted({x for curve in curves for x in curve.x})
        if len(ranks) > 1:
            none: list[float | None] = [None] * len(ranks)
            alike = Curve(name=names["A"], x=ranks, y=[1.0] * len(ranks), low=none, high=none)
            label = f"{comparison.metric} relative to {names['A']}"
            chart = svg.chart(curves, y_label=label, x_label="ranks", ideal=alike)
            charts.append((name, Markup(chart)))
    return charts


def _spent(comparison: HardwareComparison) -> list[tuple[str, Markup]]:
    """Return a chart for each case. A bar for each machine shows the time that a step loses."""
    cases: dict[str, list[svg.Bar]] = {}
    for entry in comparison.entries:
        if entry.lost_ns:
            parts = [
                (timeline.TERMS[term], max(ns, 0.0) / 1e6) for term, ns in entry.lost_ns.items()
            ]
            cases.setdefault(entry.case.id, []).append(svg.Bar(name=entry.side, parts=parts))
    return [(case, Markup(svg.stacked(bars, COLORS, unit="ms"))) for case, bars in cases.items()]
