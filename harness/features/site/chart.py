"""Draw a case over its runs: a dot for each run, its interval, and a line through the dots."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.base.formatting import still
from harness.record import Status

WIDTH = 420
HEIGHT = 132
LEFT = 44
RIGHT = 12
TOP = 12
BOTTOM = 22
#: If a chart has more runs than this, the dots of PASS and RECORDED are small. Large ones would
#: overlap.
MOST_DOTS = 80


@dataclass(frozen=True, kw_only=True)
class ChartPoint:
    """The figure of one run, with a link to the page of the run and a text that describes it."""

    value: float
    low: float | None
    high: float | None
    status: Status
    link: str
    text: str


#: Intervals are drawn completely if they extend beyond the values by at most this share of the
#: largest value. Wider intervals are clipped and marked, because they would make every change look
#: flat.
WIDEST = 0.5


class _Plane:
    """The coordinate system: runs from left to right, values with space above and below."""

    def __init__(self, points: Sequence[ChartPoint]) -> None:
        values = [point.value for point in points]
        low = min(values)
        high = max(values)
        largest = max(abs(low), abs(high))
        most = max(high - low, WIDEST * largest, 1e-12)
        ends = [end for point in points for end in (point.low, point.high) if end is not None]
        bottom = max(min([low, *ends]), low - most)
        top = min(max([high, *ends]), high + most)
        space = 0.08 * max(top - bottom, 0.08 * largest, 1e-12)
        self.low = bottom - space
        self.high = top + space
        self._count = len(points)

    def x(self, i: int) -> float:
        return LEFT + (i + 0.5) / self._count * (WIDTH - LEFT - RIGHT)

    def clipped(self, value: float) -> bool:
        """Return whether a value lies outside of the drawn range."""
        return not self.low <= value <= self.high

    def y(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        share = (inside - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield two to four round values with their labels."""
        rough = (self.high - self.low) / 3
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
        digits = max(0, -math.floor(math.log10(step)))
        for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            yield i * step, f"{i * step:,.{digits}f}"


def _arrow(x: float, y: float, *, up: bool) -> Markup:
    """Return an arrow that marks an interval which continues beyond the drawing."""
    base = y + (5 if up else -5)
    return Markup(
        '<path class="beyond" d="M{:.1f} {:.1f}L{:.1f} {:.1f}H{:.1f}Z">'
        "<title>the interval continues beyond the drawing</title></path>"
    ).format(x, y, x - 4, base, x + 4)


def chart(points: Sequence[ChartPoint], label: str, days: tuple[str, str]) -> Markup:
    """Return the drawing of one case, with its own scale at the left."""
    plane = _Plane(points)
    out = [
        Markup('<svg viewBox="0 0 {} {}" role="group" aria-label="{}">').format(
            WIDTH, HEIGHT, label
        )
    ]
    for value, words in plane.ticks():
        y = plane.y(value)
        out.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, words)
        )
    for i, p in enumerate(points):
        if p.low is not None and p.high is not None:
            out.append(
                Markup(
                    '<line class="span" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>'
                ).format(plane.x(i), plane.y(p.low), plane.y(p.high))
            )
            out += [
                _arrow(plane.x(i), plane.y(end), up=up)
                for end, up in ((p.low, False), (p.high, True))
                if plane.clipped(end)
            ]
    line = " ".join(
        f"{plane.x(i):.1f},{plane.y(point.value):.1f}" for i, point in enumerate(points)
    )
    out.append(Markup('<polyline class="run" points="{}"/>').format(line))
    for i, p in enumerate(points):
        plain = len(points) > MOST_DOTS and p.status in (Status.PASS, Status.RECORDED)
        out.append(
            Markup(
                '<a href="{}" aria-label="{}"><circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>'
                "<title>{}</title></a>"
            ).format(
                p.link, still(p.text), p.status, plane.x(i), plane.y(p.value),
                1.6 if plain else 3.6, still(p.text),
            )
        )  # fmt: skip
    ends = [(LEFT, "start", days[0]), (WIDTH - RIGHT, "end", days[1])]
    for x, anchor, day in ends if len(points) > 1 else ends[1:]:
        out.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                x, HEIGHT - 5, anchor, escape(day)
            )
        )
    return Markup("").join([*out, Markup("</svg>")])
