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
    """Throughput per device over ranks: a chart for each ladder, a line for each machine."""
    ladders: dict[str, dict[str, list[MachineEntry]]] = {}
    for e in found.entries:
        if e.point is not None:
            ladder = ladders.setdefault(e.case.family + e.case.extras, {})
            ladder.setdefault(e.side, []).append(e)
    out = []
    for name, of_sides in ladders.items():
        curves = []
        for side, entries in of_sides.items():
            ranked = sorted(entries, key=lambda e: e.case.world_size)
            none: list[float | None] = [None] * len(ranked)
            curves.append(
                Curve(
                    name=side,
                    x=[float(e.case.world_size) for e in ranked],
                    y=[e.per_device or 0.0 for e in ranked],
                    low=none,
                    high=none,
                    told=[e.case.world for e in ranked],
                )
            )
        if max(len(c.x) for c in curves) > 1:
            label = "samples/s of a device"
            out.append((name, Markup(svg.chart(curves, y_label=label, x_label="ranks"))))
    return out


def _spent(found: HardwareComparison) -> list[tuple[str, Markup]]:
    """What each machine lost of a step, case by case: bars on one scale."""
    cases: dict[str, list[svg.Bar]] = {}
    for e in found.entries:
        if e.lost_ns:
            parts = [(timeline.TERMS[t], max(ns, 0.0) / 1e6) for t, ns in e.lost_ns.items()]
            cases.setdefault(e.case.id, []).append(svg.Bar(name=e.side, parts=parts))
    return [(case, Markup(svg.stacked(bars, COLORS, unit="ms"))) for case, bars in cases.items()]
