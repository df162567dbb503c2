"""Render predictions as a page: efficiency over ranks with its interval, and the terms that cost
it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from harness.base.documents import to_doc
from harness.features.foresight.outlook import Outlook
from harness.features.foresight.own.ladders import planned
from harness.features.foresight.physics.laws import Law
from harness.features.foresight.published.table import Refused
from harness.features.foresight.report import outlooks
from harness.features.foresight.terms import ForeseenTerm
from harness.interface.report.page import drawings, svg
from harness.interface.report.page.drawings import WaterfallChart
from harness.interface.report.page.svg import Curve
from harness.interface.report.templates import templates
from harness.record import RunRecord

HERE = Path(__file__).parent
COLORS = dict(zip(ForeseenTerm, (*svg.COLORS, "#7F7F7F", "#B8A200"), strict=True))


@dataclass(frozen=True, kw_only=True)
class ShownOutlook:
    """One prediction on the page. ``facts`` are labels and sentences; charts are inline SVG."""

    title: str
    fits: bool
    curve: Markup
    lost: Markup
    facts: Sequence[tuple[str, str]]


def render(foreseen: Sequence[Outlook], refused: Sequence[Refused], of: str) -> str:
    """Return a self-contained page of predictions; ``of`` names the data that they rest on."""
    data = json.dumps(to_doc(tuple(foreseen)), separators=(",", ":")).replace("<", "\\u003c")
    return (
        templates(HERE)
        .get_template("foresight.html.jinja")
        .render(
            blocks=[block(outlook) for outlook in foreseen],
            refused=refused,
            of=of,
            data=Markup(data),
        )
    )


def blocks(run: RunRecord) -> list[ShownOutlook]:
    """Return the predictions of the sizes that the recipes of a run list."""
    shown_blocks = []
    for target, foreseen in planned(run):
        if isinstance(foreseen, Refused):
            why = [("not predicted", foreseen.why)]
            shown_blocks.append(
                ShownOutlook(
                    title=target.case.id, fits=False, curve=Markup(), lost=Markup(), facts=why
                )
            )
        else:
            shown_blocks += [block(outlook, target.case.family) for outlook in foreseen]
    return shown_blocks


def block(outlook: Outlook, name: str = "") -> ShownOutlook:
    """Return one prediction as a block, titled ``name`` or else by its table and model."""
    seen = outlook.predicted
    title = name or outlooks.title(outlook)
    if not outlook.fits:
        return ShownOutlook(
            title=title, fits=False, curve=Markup(), lost=Markup(), facts=outlooks.facts(outlook)
        )
    return ShownOutlook(
        title=f"{title}, {seen.shape.ranks:,} ranks",
        fits=True,
        curve=_curve(outlook),
        lost=_lost(outlook),
        facts=outlooks.facts(outlook),
    )


def _curve(outlook: Outlook) -> Markup:
    """Draw the efficiencies: measured, predicted with an interval, and predicted by simple laws."""
    ahead = [*outlook.path, outlook.predicted]
    known = sorted(outlook.measured.items())
    joint = known[-1:]  # the interval begins at the last measured size
    none: list[float | None] = [None] * len(known)
    foreseen = Curve(
        name="predicted, 80 % interval",
        x=[float(n) for n, _ in joint] + [float(predicted.shape.ranks) for predicted in ahead],
        y=[e for _, e in joint] + [predicted.efficiency for predicted in ahead],
        low=[e for _, e in joint] + [predicted.low for predicted in ahead],
        high=[e for _, e in joint] + [predicted.high for predicted in ahead],
    )
    measured = Curve(
        name="measured",
        x=[float(n) for n, _ in known],
        y=[e for _, e in known],
        low=none,
        high=none,
    )
    curves = [foreseen, measured, *(_law(outlook, law) for law in Law)]
    x = sorted({n for curve in curves for n in curve.x})
    ideal = Curve(name="ideal", x=x, y=[1.0] * len(x), low=[None] * len(x), high=[None] * len(x))
    drawn = svg.chart(
        curves, y_label="efficiency relative to the base", x_label="ranks", ideal=ideal
    )
    return Markup(drawn)


def _law(outlook: Outlook, law: Law) -> Curve:
    """Return the curve of a simple law: a single point, its value at the target."""
    ahead = [outlook.predicted]
    return Curve(
        name="constant efficiency" if law is Law.CONSTANT else f"law in N: {law}",
        x=[float(predicted.shape.ranks) for predicted in ahead],
        y=[predicted.baselines[law] for predicted in ahead],
        low=[None] * len(ahead),
        high=[None] * len(ahead),
    )


def _lost(outlook: Outlook) -> Markup:
    """Draw a waterfall from the ideal to the predicted efficiency.

    It has a bar for each term that changes the efficiency by at least 0.5 %.
    """
    seen = outlook.predicted
    parts = [(str(term), -100 * value) for term, value in seen.lost.items() if abs(value) >= 0.005]
    rest = 100 * (seen.efficiency - 1) - sum(v for _, v in parts)
    colors = {str(term): value for term, value in COLORS.items()} | {"all others": "#BBBBBB"}
    if abs(rest) >= 0.05:
        parts.append(("all others", rest))
    fall = WaterfallChart(
        start=("ideal", 100.0), parts=parts, end=("foreseen", 100 * seen.efficiency)
    )
    return Markup(drawings.waterfall(fall, colors, unit="%"))
