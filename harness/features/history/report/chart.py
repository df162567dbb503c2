"""A figure over nights as inline SVG: every night, its levels, and where they changed."""

import itertools
import math
from collections.abc import Iterator
from html import escape

from harness.features.history.report import told
from harness.features.history.trends import Trend, TrendStatus

WIDTH = 560
HEIGHT = 190
LEFT = 62
RIGHT = 14
TOP = 30
BOTTOM = 30
#: Nights whose values can be hovered over; older ones are a line only.
HOVERED = 60


class _NightPlane:
    """Nights from left to right, values from the lowest to the highest with room around."""

    def __init__(self, trend: Trend) -> None:
        self.values = [v.value for v in trend.series.values]
        ends = [e for v in trend.series.values for e in (v.low, v.high) if e is not None]
        low = min([*self.values, *ends])
        high = max([*self.values, *ends])
        room = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
        self.low = low - room
        self.high = high + room

    def x(self, i: float) -> float:
        return LEFT + (i + 0.5) / len(self.values) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def chart(trend: Trend) -> str:
    """One figure; a change of level is a dashed line with its date."""
    plane = _NightPlane(trend)
    series = trend.series
    label = f"{told.name(trend)} of {series.case} over {len(series.values)} nights"
    elements = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    elements += [*_axes(plane, trend), *_nights(plane, trend), *_levels(plane, trend)]
    return "".join([*elements, "</svg>"])


def _axes(plane: _NightPlane, trend: Trend) -> Iterator[str]:
    step = _nice((plane.high - plane.low) / 3)
    tick = math.ceil(plane.low / step) * step
    while tick <= plane.high:
        y = plane.y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        value = told.figure(trend.series.kind, tick)
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
        tick += step
    nights = trend.series.nights
    for i, anchor in ((0, "start"), (len(nights) - 1, "end")):
        x = LEFT if i == 0 else WIDTH - RIGHT
        day = nights[i].started_at[:10]
        yield f'<text class="tick" x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}">{day}</text>'


def _nice(step: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= step)


def _nights(plane: _NightPlane, trend: Trend) -> Iterator[str]:
    points = [(plane.x(i), plane.y(v)) for i, v in enumerate(plane.values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="nights" points="{line}"/>'
    for i in range(max(0, len(points) - HOVERED), len(points)):
        night = trend.series.nights[i]
        value = plane.values[i]
        message = f"{night.started_at[:10]}: {told.figure(trend.series.kind, value)}"
        (x, y) = points[i]
        kind = _class(trend, i)
        dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">'
        yield f"{dot}<title>{message}</title></circle>"


def _class(trend: Trend, i: int) -> str:
    """Nights of a level that is worse are marked as such, not by colour alone: see ``_levels``."""
    last = trend.last
    worse = trend.status is TrendStatus.REGRESSED and last is not None and i >= last.index
    return "worse" if worse else "night"


def _levels(plane: _NightPlane, trend: Trend) -> Iterator[str]:
    """The median of every level, and its first night."""
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
        label = escape(f"{turn.date} {told.size(trend.series.kind, turn)}".split(" [")[0])
        end = "end" if x > WIDTH / 2 else "start"
        at = x - 5 if end == "end" else x + 5
        y = 10 + 13 * (i % 2)  # changes may be near each other
        yield f'<text class="label" x="{at:.1f}" y="{y}" text-anchor="{end}">{label}</text>'
