"""Codecs on a page: their table, steps over link rates as a chart, and what follows."""

from dataclasses import dataclass

from markupsafe import Markup

from harness.analysis.choices import breakeven, tuned
from harness.interface.report.page.svg import Curve, chart
from harness.interface.report.sides import codecs
from harness.record import RunRecord

#: Link rates of the chart, Gbit/s.
RATES = (0.1, 0.316, 1.0, 3.16, 10.0)
#: Codecs on it, beside dense: as many as can be told apart.
MOST = 5


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the page shows of one plan."""

    title: str
    table: Markup
    drawn: Markup
    notes: list[str]


def sections(run: RunRecord) -> list[Section]:
    """One for each plan of codecs."""
    out = []
    for plan in codecs.plans(run):
        costs = breakeven.costs(run, plan)
        link_bps = breakeven.link_bps(run, plan.arms[0].case)
        dense = next((c for c in costs if c.name == breakeven.DENSE), None)
        wins = [
            c
            for c in costs
            if breakeven.DENSE in c.pays
            and c.pays[breakeven.DENSE].rate > 0
            and not (dense is not None and codecs.learned_less(c, dense))
        ]
        best = sorted(wins, key=lambda c: c.at(1e9, link_bps))[:MOST]
        curves = [
            Curve(
                name=c.name,
                x=RATES,
                y=[1e3 * c.at(rate * 1e9, link_bps) for rate in RATES],
                low=[None] * len(RATES),
                high=[None] * len(RATES),
            )
            for c in [*(c for c in costs if c.name == breakeven.DENSE), *best]
        ]
        y, x = "step, ms", "link rate, Gbit/s"
        out.append(
            Section(
                title=plan.name,
                table=Markup(codecs.table(costs, link_bps).html(plan.name)),
                drawn=Markup(chart(curves, y_label=y, x_label=x, log=True)) if best else Markup(""),
                notes=codecs.notes(costs, link_bps),
            )
        )
    for plan in codecs.tuned_plans(run):
        losses = tuned.best(run, plan)
        table = Markup(codecs.tuned_table(losses).html(plan.name))
        notes = codecs.tuned_notes(losses)
        out.append(Section(title=plan.name, table=table, drawn=Markup(""), notes=notes))
    return out
