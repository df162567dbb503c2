"""Draw charts as inline SVG. A chart has a few kilobytes and needs no network and no script."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# The palette by Okabe and Ito, which colour-blind readers can distinguish. Every series also has
# a marker shape, so no information depends on colour alone.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = ("circle", "square", "diamond", "triangle", "circle", "square")
WIDTH = 560
HEIGHT = 300
LEFT = 56
RIGHT = 24
TOP = 16
BOTTOM = 44
#: Horizontal distance between the intervals of two series at the same world size, in SVG units.
ASIDE = 7.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a chart with its interval band.

    ``low`` and ``high`` hold None at a point that has no interval. ``bounds`` are required values
    as pairs (x, bound). ``outcomes`` has one text for each point: the verdicts on it.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]
    bounds: Sequence[tuple[float, float]] = ()
    outcomes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class _ChartPlane:
    """The coordinate system of a chart: world sizes on a log2 x axis, values from zero on y.

    With ``log`` the y axis is a log2 axis too and starts at ``bottom``. Ideal speedup is then a
    straight line.
    """

    xs: Sequence[float]
    top: float
    bottom: float = 0.0
    log: bool = False

    def x(self, x: float) -> float:
        first = math.log2(self.xs[0])
        last = math.log2(self.xs[-1])
        return LEFT + (math.log2(x) - first) / max(last - first, 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, y: float) -> float:
        if self.log:
            y = max(y, self.bottom)
            top = math.log2(self.top / self.bottom)
            share = math.log2(y / self.bottom) / top
        else:
            share = y / self.top
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def points(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def chart(
    series: Sequence[Curve],
    *,
    y_label: str,
    x_label: str,
    ideal: Curve | None = None,
    log: bool = False,
) -> str:
    """Return a line chart over world sizes on a log2 axis.

    The y axis reaches the largest value, upper interval end or bound.
    """
    # Long names of series need the full width of a legend row.
    per_row = 2 if max(len(s.name) for s in series) <= 34 else 1
    tops = [v for s in series for v in (*s.y, *(h for h in s.high if h is not None))]
    tops += [b for s in series for _, b in s.bounds]
    top = max([*tops, *(ideal.y if ideal else [])], default=1.0) * 1.08
    ends = [v for s in series for v in (*s.y, *(e for e in s.low if e is not None)) if v > 0]
    bottom = 2.0 ** math.floor(math.log2(min(ends, default=1.0)))
    xs = sorted({x for s in series for x in s.x})
    plane = _ChartPlane(xs=xs, top=top, bottom=bottom, log=log and top > 4 * bottom)
    elements = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20 * -(-len(series) // per_row)}" role="img"'
        f' aria-label="{escape(y_label)} over {escape(x_label)}">',
        *_axes(plane, x_label, y_label),
    ]
    if ideal is not None:
        points = plane.points(zip(ideal.x, ideal.y, strict=True))
        elements.append(f'<polyline class="ideal" points="{points}"/>')
    for i, curve in enumerate(series):
        color = COLORS[i % len(COLORS)]
        mark = MARKS[i % len(MARKS)]
        aside = (i - (len(series) - 1) / 2) * ASIDE
        elements += _line(plane, curve, color, mark, aside, band=len(series) == 1)
        lx = LEFT + i % per_row * 250
        ly = HEIGHT + 10 + 20 * (i // per_row)
        elements.append(_mark(mark, lx, ly - 4, color, ""))
        elements.append(f'<text class="legend" x="{lx + 10}" y="{ly}">{escape(curve.name)}</text>')
    elements += _bound_labels(plane, series)
    return "\n".join([*elements, "</svg>"])


def _bound_labels(plane: _ChartPlane, series: Sequence[Curve]) -> Iterator[str]:
    """Yield the values of all bounds, each once, beside the marks at its world size."""
    aside = ASIDE * (len(series) - 1) / 2 + 12
    free_above: dict[float, float] = {}
    bounds = {bound for curve in series for bound in curve.bounds}
    for x, bound in sorted(bounds, key=lambda pair: (pair[0], pair[1])):
        y = plane.y(bound)
        if y > free_above.get(x, math.inf):
            continue  # the label of a close bound is in its place
        free_above[x] = y - 11
        first = x == plane.xs[0]
        at = plane.x(x) + (aside if first else -aside)
        anchor = "start" if first else "end"
        yield f'<text class="tick" x="{at:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">{bound:g}</text>'


def _axes(plane: _ChartPlane, x_label: str, y_label: str) -> Iterator[str]:
    """Yield the grid lines, the tick labels and the labels of both axes."""
    powers = range(int(math.log2(plane.bottom or 1.0)), int(math.log2(plane.top)) + 1)
    for tick in [2.0**power for power in powers] if plane.log else ticks(0.0, plane.top):
        y = plane.y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for x in plane.xs:
        yield f'<text class="tick" x="{plane.x(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>'
    yield f'<text class="label" x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    yield f'<text class="label" transform="translate(14 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'


def _line(
    plane: _ChartPlane, s: Curve, color: str, mark: str, aside: float, *, band: bool
) -> Iterator[str]:
    """Yield one series: its intervals, its line and its markers.

    A single series has a ``band``. Bands of several series would cover each other, so each of
    several series has bars instead, which are shifted by ``aside``.
    """
    ends = zip(s.x, s.low, s.high, strict=True)
    intervals = [
        (x, lowest, highest)
        for x, lowest, highest in ends
        if lowest is not None and highest is not None
    ]
    if len(intervals) > 1 and band:
        edge = [(x, highest) for x, _, highest in intervals] + [
            (x, lowest) for x, lowest, _ in reversed(intervals)
        ]
        yield f'<polygon points="{plane.points(edge)}" fill="{color}" opacity="0.18"/>'
    for x, lowest, highest in intervals:
        at = plane.x(x) + aside
        top = plane.y(highest)
        bottom = plane.y(lowest)
        yield (
            f'<path d="M{at - 3:.1f} {top:.1f}h6m-3 0V{bottom:.1f}m-3 0h6" fill="none"'
            f' stroke="{color}"/>'
        )
    points = [(plane.x(x) + aside, plane.y(y)) for x, y in zip(s.x, s.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    for i, (at, height) in enumerate(points):
        outcome = s.outcomes[i] if s.outcomes else ""
        title = f"<title>{escape(s.name)} @{s.x[i]:g}: {s.y[i]:.4g} {escape(outcome)}</title>"
        yield _mark(mark, at, height, color, title)
    for x, bound in s.bounds:
        middle = plane.x(x) + aside
        y = plane.y(bound)
        title = f"<title>{escape(s.name)} @{x:g}: bound {bound:g}</title>"
        yield (
            f'<line x1="{middle - 9:.1f}" x2="{middle + 9:.1f}" y1="{y:.1f}" y2="{y:.1f}" class="asked"'
            f' stroke="{color}">{title}</line>'
        )


def _mark(kind: str, x: float, y: float, color: str, title: str) -> str:
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"',
        "square": f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
        "diamond": f'<path d="M{x:.1f} {y - 5:.1f} l5 5 l-5 5 l-5 -5 z"',
        "triangle": f'<path d="M{x:.1f} {y - 5:.1f} l5 9 h-10 z"',
    }
    return f'{shapes[kind]} fill="{color}">{title}</{shapes[kind][1:].split()[0]}>'


def ticks(low: float, high: float) -> list[float]:
    """Return at most six round values from ``low`` to ``high``."""
    raw = (high - low) / 5 or 1.0
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= raw)
    first = math.ceil(low / step)
    largest = math.floor(high / step)
    return [float(f"{i * step:.10g}") for i in range(first, largest + 1)]


def strip(
    values: Sequence[float],
    low: float | None,
    high: float | None,
    bounds: Sequence[float],
    scale: tuple[float, float],
) -> str:
    """Return a strip with a dot for each pair's value, a bar for the interval and lines for bounds.

    The strip covers the values from ``scale[0]`` to ``scale[1]``.
    """
    if not [*values, *(value for value in (low, high, *bounds) if value is not None)]:
        return ""
    lowest, highest = scale
    margin = (highest - lowest) * 0.04 or abs(highest) * 0.01 or 1.0
    lowest = lowest - margin
    highest = highest + margin

    def px(value: float) -> float:
        return 4 + (value - lowest) / (highest - lowest) * 192

    elements = ['<svg class="strip" viewBox="0 0 200 22" role="img" aria-label="pairs">']
    if low is not None and high is not None:
        elements.append(
            f'<rect class="bar" x="{px(low):.1f}" y="8" width="{max(1, px(high) - px(low)):.1f}" height="6"/>'
        )
    for bound in bounds:
        elements.append(
            f'<line class="bound" x1="{px(bound):.1f}" x2="{px(bound):.1f}" y1="1" y2="21"><title>bound {bound:g}</title></line>'
        )
    for value in values:
        elements.append(
            f'<circle class="dot" cx="{px(value):.1f}" cy="11" r="2.5"><title>{value:.4g}</title></circle>'
        )
    return "".join([*elements, "</svg>"])


def history(values: Sequence[float], bounds: Sequence[float], label: str) -> str:
    """Return a small line of a value over runs, oldest first, with lines for bounds.

    The newest value has a dot. ``label`` is the text for readers that cannot see it.
    """
    lowest = min([*values, *bounds])
    span = max([*values, *bounds]) - lowest or abs(lowest) or 1.0

    def y(value: float) -> float:
        return 18 - (value - lowest) / span * 14

    step = 82 / max(1, len(values) - 1)
    places = [(4 + i * step, y(value)) for i, value in enumerate(values)]
    path = " ".join(f"{x_:.1f},{y_:.1f}" for x_, y_ in places)
    lines = "".join(
        f'<line class="bound" x1="0" x2="90" y1="{y(bound):.1f}" y2="{y(bound):.1f}"/>'
        for bound in bounds
    )
    newest_x, newest_y = places[-1]
    return (
        f'<svg class="past" viewBox="0 0 90 22" role="img" aria-label="{escape(label)}">'
        f'<title>{escape(label)}</title>{lines}<polyline points="{path}"/>'
        f'<circle class="dot" cx="{newest_x:.1f}" cy="{newest_y:.1f}" r="2.5"/></svg>'
    )


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stacked bar with its (name, value) parts from left to right."""

    name: str
    parts: Sequence[tuple[str, float]]


def stacked(
    bars: Sequence[Bar],
    colors: Mapping[str, str],
    *,
    unit: str,
    mark: float | None = None,
    most: float | None = None,
) -> str:
    """Return horizontal stacked bars on one axis, with a legend of the parts that occur.

    ``mark`` is the position of a dashed line. ``most`` is the end of the axis; charts that readers
    compare must have the same ``most``.
    """
    if most is None:
        most = max([*(sum(v for _, v in b.parts) for b in bars), mark or 0.0])
    most = most * 1.02 or 1.0
    left_edge, row = 64, 24
    bottom = 8 + row * len(bars)
    used = [
        color
        for color in colors
        if any(color == name and v > 0 for b in bars for name, v in b.parts)
    ]
    legend_rows = -(-len(used) // 4)

    def px(value: float) -> float:
        return left_edge + value / most * (WIDTH - left_edge - RIGHT)

    elements = [
        f'<svg viewBox="0 0 {WIDTH} {bottom + 30 + 20 * legend_rows}" role="img"'
        f' aria-label="parts in {escape(unit)}">'
    ]
    for tick in ticks(0.0, most):
        elements.append(
            f'<line class="grid" x1="{px(tick):.1f}" x2="{px(tick):.1f}" y1="4" y2="{bottom}"/>'
            f'<text class="tick" x="{px(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>'
        )
    for i, bar in enumerate(bars):
        y = 8 + row * i
        begin = 0.0
        elements.append(
            f'<text class="tick" x="{left_edge - 6}" y="{y + 13}" text-anchor="end">{escape(bar.name)}</text>'
        )
        for name, value in bar.parts:
            if value <= 0:
                continue
            title = f"<title>{escape(name)}: {value:.2f} {escape(unit)}</title>"
            elements.append(
                f'<rect x="{px(begin):.1f}" y="{y}" width="{px(begin + value) - px(begin):.2f}" height="{row - 6}"'
                f' fill="{colors[name]}">{title}</rect>'
            )
            begin += value
    if mark is not None:
        elements.append(
            f'<line class="mark" x1="{px(mark):.1f}" x2="{px(mark):.1f}" y1="2" y2="{bottom}"/>'
        )
    for i, name in enumerate(used):
        lx = left_edge + (i % 4) * 122
        ly = bottom + 36 + 20 * (i // 4)
        elements.append(
            f'<rect x="{lx}" y="{ly - 10}" width="10" height="10" fill="{colors[name]}"/>'
        )
        elements.append(f'<text class="legend" x="{lx + 14}" y="{ly}">{escape(name)}</text>')
    return "\n".join([*elements, "</svg>"])
