"""Draw one case or one world size: values over steps, a waterfall, one step of all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from harness.interface.report.page.svg import COLORS, RIGHT, WIDTH, ticks

#: The largest number of points in a line. The steps of a longer series are grouped, and each group
#: is drawn as its largest value.
POINTS = 120


@dataclass(frozen=True, kw_only=True)
class StepSeriesChart:
    """The values of one quantity over the steps of a launch.

    ``steps`` are the numbers of the steps if some steps have no value.
    """

    name: str
    values: Sequence[float]
    steps: Sequence[int] = ()

    @property
    def points(self) -> list[tuple[int, float]]:
        """The points (step, value) to draw.

        Steps are grouped, and each group is drawn as its largest value, so peaks stay visible.
        """
        numbered = list(zip(self.steps or range(len(self.values)), self.values, strict=True))
        size = -(-len(numbered) // POINTS)
        return [
            max(numbered[i : i + size], key=lambda p: p[1]) for i in range(0, len(numbered), size)
        ]


def over_steps(trails: Sequence[StepSeriesChart], *, title: str, unit: str, cut: int = 0) -> str:
    """Return a chart with one line for each launch.

    Steps before ``cut`` are warm-up and have a grey background, because they are not measured.
    """
    left_edge, top, height, bottom = 56, 10, 150, 34
    longest = 1 + max(step for t in trails for step, _ in t.points)
    ends = [v for t in trails for v in t.values]
    low = min(ends)
    high = max(ends)
    low = 0.0 if low > 0 and high > 3 * (high - low) and unit == "ms" else low
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    low = low if low == 0 else low - room
    high = high + room

    def x(step: float) -> float:
        return left_edge + step / max(longest - 1, 1) * (WIDTH - left_edge - RIGHT)

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * height

    elements = [
        f'<svg viewBox="0 0 {WIDTH} {top + height + bottom}" role="img"'
        f' aria-label="{escape(title)} in {escape(unit)} over steps">'
    ]
    for tick in ticks(low, high):
        elements.append(
            f'<line class="grid" x1="{left_edge}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text class="tick" x="{left_edge - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    if cut:
        elements.append(
            f'<rect class="cut" x="{left_edge}" y="{top}" width="{x(cut) - left_edge:.1f}" height="{height}">'
            f"<title>{cut} warm-up steps, not measured</title></rect>"
        )
    for i, trail in enumerate(trails):
        points = " ".join(f"{x(step):.0f},{y(v):.1f}" for step, v in trail.points)
        largest = max(trail.values)
        elements.append(
            f'<polyline class="trail" points="{points}" stroke="{COLORS[i % len(COLORS)]}">'
            f"<title>{escape(trail.name)}: {min(trail.values):.4g} to {largest:.4g} {escape(unit)}</title></polyline>"
        )
    at = top + height + 16
    elements.append(f'<text class="tick" x="{left_edge}" y="{at}">step 0</text>')
    elements.append(
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{at}" text-anchor="end">step {longest - 1}</text>'
        f'<text class="label" x="{(left_edge + WIDTH) / 2:.0f}" y="{at + 12}" text-anchor="middle">{escape(title)}, {escape(unit)}</text>'
    )
    return "\n".join([*elements, "</svg>"])


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The values whose distribution is one row of a chart."""

    name: str
    values: Sequence[float]


def spreads(rows: Sequence[Spread], *, title: str, unit: str) -> str:
    """Return a chart with the distribution of each row's values on one axis.

    A row has a line from the 5th to the 95th percentile, a bar between the quartiles, a mark at the
    median and a dot at the largest value.
    """
    left_edge, row = 64, 22
    bottom = 6 + row * len(rows)
    low = min(min(r.values) for r in rows)
    high = max(max(r.values) for r in rows)
    low = 0.0 if high > 2 * low else low
    size = (high - low) or 1.0

    def px(value: float) -> float:
        return left_edge + (value - low) / size * (WIDTH - left_edge - RIGHT)

    elements = [
        f'<svg viewBox="0 0 {WIDTH} {bottom + 38}" role="img"'
        f' aria-label="{escape(title)} in {escape(unit)}, {len(rows)} rows">'
    ]
    for tick in ticks(low, high):
        elements.append(
            f'<line class="grid" x1="{px(tick):.1f}" x2="{px(tick):.1f}" y1="4" y2="{bottom}"/>'
            f'<text class="tick" x="{px(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g}</text>'
        )
    for i, spread in enumerate(rows):
        y = 6 + row * i + 8
        p5, p25, p50, p75, p95 = np.percentile(spread.values, (5, 25, 50, 75, 95))
        worst = max(spread.values)
        words = f"{spread.name}: median {p50:.4g}, 95 % {p95:.4g}, worst {worst:.4g} {unit}"
        elements.append(
            f'<g><title>{escape(words)}</title><text class="tick" x="{left_edge - 6}" y="{y + 4}"'
            f' text-anchor="end">{escape(spread.name)}</text>'
            f'<line x1="{px(p5):.1f}" x2="{px(p95):.1f}" y1="{y}" y2="{y}" stroke="{COLORS[0]}"/>'
            f'<rect x="{px(p25):.1f}" y="{y - 5}" width="{max(px(p75) - px(p25), 1):.1f}" height="10"'
            f' fill="{COLORS[0]}" opacity="0.45"/><line x1="{px(p50):.1f}" x2="{px(p50):.1f}"'
            f' y1="{y - 6}" y2="{y + 6}" stroke="{COLORS[0]}" stroke-width="2"/>'
            f'<circle cx="{px(worst):.1f}" cy="{y}" r="2.5" fill="{COLORS[1]}"/></g>'
        )
    elements.append(
        f'<text class="label" x="{(left_edge + WIDTH) / 2:.0f}" y="{bottom + 32}"'
        f' text-anchor="middle">{escape(title)}, {escape(unit)}</text>'
    )
    return "\n".join([*elements, "</svg>"])


@dataclass(frozen=True, kw_only=True)
class WaterfallChart:
    """A waterfall chart: the parts that lead from one total to another."""

    start: tuple[str, float]
    parts: Sequence[tuple[str, float]]
    end: tuple[str, float]


def waterfall(fall: WaterfallChart, colors: Mapping[str, str], *, unit: str) -> str:
    """Return a chart with one row for each part and its amount in ``unit``.

    The bar of a part that reduces the total points to the left.
    """
    left_edge, right, row = 150, 86, 24
    rows = 2 + len(fall.parts)
    level = fall.start[1]
    largest = max(fall.start[1], fall.end[1])
    for _, value in fall.parts:
        level += value
        largest = max(largest, level)
    largest = largest * 1.02 or 1.0

    def px(value: float) -> float:
        return left_edge + max(value, 0.0) / largest * (WIDTH - left_edge - right)

    elements = [
        f'<svg viewBox="0 0 {WIDTH} {row * rows + 12}" role="img"'
        f' aria-label="from {escape(fall.start[0])} to {escape(fall.end[0])}">'
    ]
    level = 0.0
    lines = [(*fall.start, True), *((n, v, False) for n, v in fall.parts), (*fall.end, True)]
    for i, (name, value, whole) in enumerate(lines):
        begin, end = (0.0, value) if whole else (level, level + value)
        level = end
        y = 6 + row * i
        low, high = sorted((px(begin), px(end)))
        color = "var(--soft)" if whole else colors[name]
        words = f"{value:.2f} {unit}" if whole else f"{value:+.2f} {unit}"
        bold = ' font-weight="600"' if whole else ""
        elements.append(
            f'<text class="legend" x="{left_edge - 8}" y="{y + 14}" text-anchor="end"{bold}>{escape(name)}</text>'
            f'<rect x="{low:.1f}" y="{y}" width="{max(high - low, 1):.1f}" height="{row - 6}" fill="{color}">'
            f"<title>{escape(name)}: {escape(words)}</title></rect>"
            f'<text class="legend" x="{high + 6:.1f}" y="{y + 14}"{bold}>{escape(words)}</text>'
        )
        if i + 1 < len(lines):
            elements.append(
                f'<line class="grid" x1="{px(level):.1f}" x2="{px(level):.1f}" y1="{y}" y2="{y + 2 * row - 6}"/>'
            )
    return "\n".join([*elements, "</svg>"])


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The step of one rank: its (term, start, end) parts, measured from the beginning of the step."""

    name: str
    parts: Sequence[tuple[str, float, float]]


def lanes(
    ranks: Sequence[Lane], colors: Mapping[str, str], *, unit: str, title: str = "one step"
) -> str:
    """Return a chart with a lane for each rank, on one clock.

    ``title`` says what the lanes show, if they do not show ranks.
    """
    left_edge, row = 64, 22
    longest = max((end for lane in ranks for _, _, end in lane.parts), default=1.0) or 1.0
    bottom = 6 + row * len(ranks)
    used = [name for name in colors if any(name == n for lane in ranks for n, _, _ in lane.parts)]

    def px(value: float) -> float:
        return left_edge + value / longest * (WIDTH - left_edge - RIGHT)

    elements = [
        f'<svg viewBox="0 0 {WIDTH} {bottom + 30 + 20 * -(-len(used) // 4)}" role="img"'
        f' aria-label="{escape(title)}, {len(ranks)} lanes in {escape(unit)}">'
    ]
    for i, rank in enumerate(ranks):
        y = 6 + row * i
        elements.append(
            f'<text class="tick" x="{left_edge - 6}" y="{y + 12}" text-anchor="end">{escape(rank.name)}</text>'
        )
        elements += [
            f'<rect x="{px(a):.1f}" y="{y}" width="{max(px(b) - px(a), 0.3):.1f}" height="{row - 6}"'
            f' fill="{colors[n]}"><title>{escape(n)} {b - a:.2f} {escape(unit)}</title></rect>'
            for n, a, b in rank.parts
        ]
    *others, last = ticks(0.0, longest)
    for tick, words in [*((tick, f"{tick:g}") for tick in others), (last, f"{last:g} {unit}")]:
        elements.append(
            f'<text class="tick" x="{px(tick):.1f}" y="{bottom + 12}" text-anchor="middle">'
            f"{escape(words)}</text>"
        )
    elements.append(legend(used, colors, left_edge, bottom + 34))
    return "\n".join([*elements, "</svg>"])


def legend(names: Sequence[str], colors: Mapping[str, str], left: int, top: int) -> str:
    """Return a legend with four names to a row. ``top`` is the base line of the first row."""
    elements = []
    for i, name in enumerate(names):
        x = left + (i % 4) * 122
        y = top + 20 * (i // 4)
        elements.append(
            f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{colors[name]}"/>'
        )
        elements.append(f'<text class="legend" x="{x + 14}" y="{y}">{escape(name)}</text>')
    return "".join(elements)
