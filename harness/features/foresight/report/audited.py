"""Render the audit of a published table as a page, with a section for each kind of times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.features.foresight.claims import ClaimedColumn, ClaimFinding, Row
from harness.interface.report.page import svg
from harness.interface.report.templates import templates


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the page, as text."""

    row: str
    stated: str
    speedup: str
    launches: str
    efficiency: str
    reading: str


@dataclass(frozen=True, kw_only=True)
class AuditedKind:
    """The rows of a table whose times measure the same thing, such as the time of an epoch."""

    name: str
    source: str
    leaves_out: str
    rows: Sequence[Line]


def render(audit: Mapping[str, Any], rows: Sequence[Row], findings: Sequence[ClaimFinding]) -> str:
    """Return the page of a table. ``audit`` holds its title, its claim, and notes on each kind."""
    names = dict.fromkeys(finding.kind for finding in findings)
    about = {str(k.get("name", "")): k for k in audit.get("kind", ()) if isinstance(k, dict)}
    return (
        templates(Path(__file__).parent)
        .get_template("audited.html.jinja")
        .render(
            title=str(audit.get("title", "Audit of a table")),
            claim=str(audit.get("claim", "")),
            sentence=_sentence(rows, findings),
            chart=_chart(rows, findings),
            kinds=[_kind(name, about.get(name, {}), rows, findings) for name in names],
        )
    )


def _sentence(rows: Sequence[Row], findings: Sequence[ClaimFinding]) -> str:
    """Return a sentence with the efficiency of the largest row of each kind.

    The values read like ``0.69 by minutes to the target, 0.77 by ...``. If the machines have the
    same number of ranks, the sentence states how many times as fast the last one is.
    """
    last: dict[str, str] = {}
    faster: dict[str, str] = {}
    for row, finding in zip(rows, findings, strict=True):
        stated = row.get(ClaimedColumn.EFFICIENCY)
        if finding.speedup is not None and finding.efficiency is None:
            faster[finding.kind] = _times(finding)
        if finding.efficiency is not None:
            last[finding.kind] = f"{sum(finding.efficiency) / 2:.2f}"
        elif stated is not None:
            last[finding.kind] = f"{stated.middle:.2f} as stated"
    if faster:
        ratios = "; ".join(f"{value} by {kind or 'its times'}" for kind, value in faster.items())
        return f"At the same scale the last machine is {ratios}."
    values = ", ".join(f"{value} by {kind or 'its times'}" for kind, value in last.items())
    return (
        f"The efficiency of the largest system is {values}."
        if values
        else "No efficiency follows from this table."
    )


def _times(finding: ClaimFinding) -> str:
    """Return text such as ``1.58 times as fast (1.40 to 1.77 as launches differ)``."""
    assert finding.speedup is not None
    value = f"{sum(finding.speedup) / 2:.2f} times as fast"
    if finding.between_launches is None:
        return value
    low, high = finding.between_launches
    return f"{value} ({low:.2f} to {high:.2f} as launches differ)"


def _kind(
    name: str, about: Mapping[str, Any], rows: Sequence[Row], findings: Sequence[ClaimFinding]
) -> AuditedKind:
    lines = [
        Line(
            row=finding.row,
            stated=", ".join(
                f"{column} {figure.text}"
                for column, figure in row.items()
                if column != ClaimedColumn.RANKS
            ),
            speedup=_span(finding.speedup),
            launches=_span(finding.between_launches),
            efficiency=_span(finding.efficiency),
            reading=f"{finding.status}: {'; '.join(finding.why) or 'follows from the times'}",
        )
        for row, finding in zip(rows, findings, strict=True)
        if finding.kind == name
    ]
    source = str(about.get("source", ""))
    return AuditedKind(
        name=name, source=source, leaves_out=str(about.get("leaves_out", "")), rows=lines
    )


def _span(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"


def _chart(rows: Sequence[Row], findings: Sequence[ClaimFinding]) -> Markup:
    """Return one chart of efficiency over ranks.

    It has a curve for each kind of times with two or more rows, and the ideal line.
    """
    curves = []
    for name in dict.fromkeys(f.kind for f in findings):
        points = [
            (row[ClaimedColumn.RANKS].middle, finding.efficiency)
            for row, finding in zip(rows, findings, strict=True)
            if finding.kind == name and finding.efficiency is not None
        ]
        if len(points) > 1:
            curves.append(
                svg.Curve(
                    name=name or "its times",
                    x=[x for x, _ in points],
                    y=[sum(ends) / 2 for _, ends in points],
                    low=[ends[0] for _, ends in points],
                    high=[ends[1] for _, ends in points],
                )
            )
    if not curves:
        return Markup("")
    ranks = sorted({x for curve in curves for x in curve.x})
    flat = [None] * len(ranks)
    ideal = svg.Curve(name="linear", x=ranks, y=[1.0] * len(ranks), low=flat, high=flat)
    return Markup(svg.chart(curves, y_label="efficiency", x_label="ranks", ideal=ideal))
