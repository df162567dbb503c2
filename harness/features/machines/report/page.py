"""The page of a hardware comparison: one self-contained file, as that of a run."""

import json
from pathlib import Path

from markupsafe import Markup

from harness.base.documents import to_doc
from harness.features.machines.machines import HardwareComparison, MachineEntry
from harness.features.machines.report import table as hardware
from harness.interface.report import timeline
from harness.interface.report.page import svg
from harness.interface.report.page.spent import COLORS
from harness.interface.report.page.svg import Curve
from harness.interface.report.templates import templates

HERE = Path(__file__).parent


def render(found: HardwareComparison) -> str:
    """Headline, machines, charts, cases, totals, where the time went, notes."""
    data = json.dumps(to_doc(found), separators=(",", ":")).replace("<", "\\u003c")
    return (
        templates(HERE)
        .get_template("hardware.html.jinja")
        .render(
            headline=hardware.headline(found),
            sides=found.sides,
            purchase=hardware.purchase(found),
            ceilings=hardware.sides(found).html("machines"),
            differs=found.differs,
            charts=_charts(found),
            entries=hardware.entries(found).html("cases"),
            totals=hardware.totals(found).html("all devices of each machine"),
            spent=_spent(found),
            lost=hardware.lost(found).html("parts of the steps"),
            notes=hardware.notes(found)[1:],
            data=Markup(data),
        )
    )


def _charts(found: HardwareComparison) -> list[tuple[str, Markup]]:
    """What each machine gives over the first one, with its interval, over ranks: by ladder."""
    names = {side.name: hardware.named(side, found.sides) for side in found.sides}
    ladders: dict[str, dict[str, list[MachineEntry]]] = {}
    for entry in found.entries:
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
                    told=[entry.case.world for entry in ranked],
                )
            )
        ranks = sorted({x for curve in curves for x in curve.x})
        if len(ranks) > 1:
            none: list[float | None] = [None] * len(ranks)
            alike = Curve(name=names["A"], x=ranks, y=[1.0] * len(ranks), low=none, high=none)
            label = f"{found.metric} over that of {names['A']}"
            chart = svg.chart(curves, y_label=label, x_label="ranks", ideal=alike)
            charts.append((name, Markup(chart)))
    return charts


def _spent(found: HardwareComparison) -> list[tuple[str, Markup]]:
    """What each machine lost of a step, case by case: bars on one scale."""
    cases: dict[str, list[svg.Bar]] = {}
    for entry in found.entries:
        if entry.lost_ns:
            parts = [
                (timeline.TERMS[term], max(ns, 0.0) / 1e6) for term, ns in entry.lost_ns.items()
            ]
            cases.setdefault(entry.case.id, []).append(svg.Bar(name=entry.side, parts=parts))
    return [(case, Markup(svg.stacked(bars, COLORS, unit="ms"))) for case, bars in cases.items()]
