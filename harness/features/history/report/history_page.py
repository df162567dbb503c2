"""The report on the history as one self-contained HTML page."""

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.base import files
from harness.base.documents import to_doc
from harness.features.history import asv_results, ledger
from harness.features.history.night import Night
from harness.features.history.report import rows
from harness.features.history.trends import Trend, TrendStatus, changed
from harness.interface.report.templates import templates

#: Size of a chart and its margins, in px.
WIDTH = 560
HEIGHT = 190
LEFT = 62
RIGHT = 14
TOP = 30
BOTTOM = 30
#: Number of newest nights with a dot and a tooltip; older ones are only part of the line.
HOVERED = 60


class _NightPlane:
    """The coordinate system of a chart.

    Nights run from left to right. The range of values has a margin above and below.
    """

    def __init__(self, trend: Trend) -> None:
        self.values = [v.value for v in trend.series.values]
        ends = [e for v in trend.series.values for e in (v.low, v.high) if e is not None]
        low = min([*self.values, *ends])
        high = max([*self.values, *ends])
        room = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
        self.low = low - room
        self.high = high + room

    def x(self, i: float) -> float:
        """Return the horizontal position of a night."""
        return LEFT + (i + 0.5) / len(self.values) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def chart(trend: Trend) -> str:
    """Return the chart of a series as SVG; a change of level is a dashed line with its date."""
    plane = _NightPlane(trend)
    series = trend.series
    label = f"{rows.name(trend)} of {series.case} over {len(series.values)} nights"
    elements = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    elements += [*_axes(plane, trend), *_nights(plane, trend), *_levels(plane, trend)]
    return "".join([*elements, "</svg>"])


def _axes(plane: _NightPlane, trend: Trend) -> Iterator[str]:
    """Yield the grid, its labels, and the first and last date."""
    step = _nice((plane.high - plane.low) / 3)
    tick = math.ceil(plane.low / step) * step
    while tick <= plane.high:
        y = plane.y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        value = rows.figure(trend.series.kind, tick)
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
        tick += step
    nights = trend.series.nights
    for i, anchor in ((0, "start"), (len(nights) - 1, "end")):
        x = LEFT if i == 0 else WIDTH - RIGHT
        day = nights[i].started_at[:10]
        yield f'<text class="tick" x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}">{day}</text>'


def _nice(step: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below ``step``."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= step)


def _nights(plane: _NightPlane, trend: Trend) -> Iterator[str]:
    """Yield the line through all nights, and dots of the newest ones."""
    points = [(plane.x(i), plane.y(v)) for i, v in enumerate(plane.values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="nights" points="{line}"/>'
    for i in range(max(0, len(points) - HOVERED), len(points)):
        night = trend.series.nights[i]
        value = plane.values[i]
        message = f"{night.started_at[:10]}: {rows.figure(trend.series.kind, value)}"
        (x, y) = points[i]
        kind = _class(trend, i)
        dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">'
        yield f"{dot}<title>{message}</title></circle>"


def _class(trend: Trend, i: int) -> str:
    """Return the CSS class of a night's dot.

    Nights of a worse level have their own class. ``_levels`` marks them by shape as well as colour.
    """
    last = trend.last
    worse = trend.status is TrendStatus.REGRESSED and last is not None and i >= last.index
    return "worse" if worse else "night"


def _levels(plane: _NightPlane, trend: Trend) -> Iterator[str]:
    """Yield the median of every level, and a mark at its first night."""
    starts = [0, *(turn.index for turn in trend.turns), len(plane.values)]
    for a, b in itertools.pairwise(starts):
        level = sorted(plane.values[a:b])[(b - a) // 2]
        y = plane.y(level)
        x1 = plane.x(a - 0.5)
        x2 = plane.x(b - 0.5)
        yield f'<line class="level" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    for i, turn in enumerate(trend.turns):
        x = plane.x(turn.index - 0.5)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        label = escape(f"{turn.date} {rows.size(trend.series.kind, turn)}".split(" [")[0])
        end = "end" if x > WIDTH / 2 else "start"
        at = x - 5 if end == "end" else x + 5
        y = 10 + 13 * (i % 2)  # two lines, because changes may be close to each other
        yield f'<text class="label" x="{at:.1f}" y="{y}" text-anchor="{end}">{label}</text>'


#: The verdict whose colours a status has.
_LOOKS = {
    TrendStatus.ERRORED: "ERROR",
    TrendStatus.REGRESSED: "FAIL",
    TrendStatus.UNCONFIRMED: "INCONCLUSIVE",
    TrendStatus.SUSPICIOUS: "INCONCLUSIVE",
    TrendStatus.DRIFTING: "INCONCLUSIVE",
    TrendStatus.IMPROVED: "PASS",
    TrendStatus.STABLE: "RECORDED",
}


def write(path: Path, results: Path, nights: Sequence[Night], trends: Sequence[Trend]) -> None:
    """Write the page atomically. A night links to the report of its run if the run still exists."""
    commits = ledger.commits(results / asv_results.LEDGER)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.writing_to(path.parent):
        files.write({path: render(nights, trends, commits, path.parent, results)})


def render(
    nights: Sequence[Night],
    trends: Sequence[Trend],
    commits: dict[str, str],
    place: Path,
    results: Path,
) -> str:
    """Return the page.

    ``commits`` maps each run to its commit of the ledger, which is the anchor of its night in the
    page. ``place`` is the folder in which the page will be.
    """
    moved = [
        trend
        for trend in trends
        if trend.turns or trend.status not in (TrendStatus.STABLE, TrendStatus.INSUFFICIENT)
    ]
    quiet = [trend for trend in trends if trend not in moved]
    data = json.dumps([_data(trend) for trend in trends]).replace("<", "\\u003c")
    return (
        templates(Path(__file__).parent)
        .get_template("history.html.jinja")
        .render(
            headline=rows.headline(trends),
            looks=next(iter(_looks(trend) for trend in trends), "RECORDED"),
            counts=rows.counts(trends),
            machines=", ".join(sorted({trend.series.machine for trend in trends})),
            first=nights[0].started_at[:10],
            last=nights[-1].started_at[:10],
            count=len(nights),
            moved=[_row(trend) for trend in moved],
            quiet=_by_case(quiet),
            nights=[
                _night(n, b, commits, os.path.relpath(results, place), results)
                for n, b in _newest_first(nights)
            ],
            data=Markup(data),
        )
    )


def _newest_first(nights: Sequence[Night]) -> list[tuple[Night, Night | None]]:
    """Return each night with the previous one on the same machine, newest first."""
    last: dict[str, Night] = {}
    paired = []
    for night in nights:
        paired.append((night, last.get(night.hardware)))
        last[night.hardware] = night
    return paired[::-1]


def _looks(trend: Trend) -> str:
    """Return the verdict whose colours a trend has."""
    return _LOOKS.get(trend.status, "SKIP")


def _row(trend: Trend) -> dict[str, Any]:
    """Return the fields of a trend for the template."""
    return {
        "status": rows.word(trend.status),
        "looks": _looks(trend),
        "case": trend.series.case,
        "machine": trend.series.machine,
        "figure": rows.name(trend),
        "newest": rows.newest(trend),
        "count": len(trend.series.values),
        "why": trend.why,
        "change": rows.change(trend) if trend.last else "",
        "past": rows.past(trend),
        "svg": Markup(chart(trend)) if trend.series.values else "",
    }


def _by_case(trends: Sequence[Trend]) -> list[dict[str, Any]]:
    """Return one entry for each case, with the rows of its trends."""
    cases: dict[tuple[str, str], list[Trend]] = {}
    for trend in sorted(trends, key=lambda t: t.series.case):
        cases.setdefault((trend.series.machine, trend.series.case), []).append(trend)
    return [
        {"case": case, "machine": machine, "figures": [_row(t) for t in of_case]}
        for (machine, case), of_case in cases.items()
    ]


def _night(
    night: Night, before: Night | None, commits: dict[str, str], way: str, results: Path
) -> dict[str, Any]:
    """Return the fields of a night for the template. ``way`` is the path from the page to the
    results.
    """
    report = Path(night.folder) / "report.html"
    broken = [case for case, kept in night.cases.items() if kept.error]
    return {
        "anchor": commits.get(night.run, night.run)[:8],
        "run": night.run,
        "when": night.started_at[:16].replace("T", " "),
        "machine": night.hardware,
        "cases": len(night.cases),
        "broken": broken,
        "folder": night.folder,
        "report": f"{way}/{report}" if (results / report).is_file() else "",
        "changed": changed(before, night) if before else [],
        "subject": ", ".join(f"{key} {value}" for key, value in sorted(night.subject.items())),
    }


def _data(trend: Trend) -> dict[str, Any]:
    """Return a trend as machine-readable data."""
    series = trend.series
    return {
        "machine": series.machine,
        "case": series.case,
        "figure": series.quantity,
        "unit": series.kind.unit,
        "status": str(trend.status),
        "why": trend.why,
        "changes": to_doc(trend.turns),
        "runs": [night.run for night in series.nights],
        "values": [v.value for v in series.values],
    }
