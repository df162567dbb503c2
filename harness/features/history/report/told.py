"""The rows of a history, told once for the terminal and the page."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence

from harness.base.formatting import si
from harness.features.history import asv
from harness.features.history.night import Quantity
from harness.features.history.trends import Trend, TrendStatus, Turn, shown_size

#: Eight levels of a sparkline, and how many of them a line has.
_LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 24


def headline(trends: Sequence[Trend]) -> str:
    """The headline for a manager: is anything slower, and since when."""
    worse = [trend for trend in trends if trend.status is TrendStatus.REGRESSED]
    broken = {trend.series.case for trend in trends if trend.status is TrendStatus.ERRORED}
    if broken:
        return f"ERROR: {len(broken)} of the cases were not measured in their newest night"
    if worse:
        newest = max(trend.last.date for trend in worse if trend.last is not None)
        many = "figure has" if len(worse) == 1 else "figures have"
        return f"{len(worse)} {many} become worse, last on {newest}"
    judged = sum(
        trend.status not in (TrendStatus.INSUFFICIENT, TrendStatus.NOT_COMPARABLE)
        for trend in trends
    )
    if not judged:
        return f"too few nights to tell: none of {len(trends)} figures has enough"
    return f"no figure has become worse ({judged} of {len(trends)} judged)"


def counts(trends: Sequence[Trend]) -> str:
    """``1 regressed, 29 stable``"""
    count = Counter(trend.status for trend in trends)
    return ", ".join(f"{count[status]} {word(status)}" for status in TrendStatus if count[status])


def word(status: TrendStatus) -> str:
    return str(status).replace("_", " ")


def name(trend: Trend) -> str:
    return trend.series.quantity.replace("_", " ")


def figure(kind: Quantity, value: float) -> str:
    return f"{value:.3f}" if kind.unit == "1" else si(value, kind.unit)


def key(trend: Trend) -> tuple[str, str]:
    """The name that asv gives it: its benchmark with the case, and the machine."""
    series = trend.series
    return f"{asv.benchmark(series.quantity)}('{series.case}')", series.machine


def newest(trend: Trend) -> str:
    values = trend.series.values
    return figure(trend.series.kind, values[-1].value) if values else "-"


def change(trend: Trend) -> str:
    """``+4.9% [+4.5, +5.3]`` of the newest change of level."""
    return "" if trend.last is None else size(trend.series.kind, trend.last)


def size(kind: Quantity, turn: Turn) -> str:
    span = f"[{100 * turn.low:+.1f}, {100 * turn.high:+.1f}]"
    return f"{shown_size(kind, turn.size)} {span}"


def spark(trend: Trend) -> str:
    """The newest nights as bars, from the lowest to the highest of them."""
    values = [v.value for v in trend.series.values[-60:]]
    if not values:
        return ""
    wide = min(WIDTH, len(values))
    edges = [round(i * len(values) / wide) for i in range(wide + 1)]
    bins = [statistics.median(values[a:b]) for a, b in itertools.pairwise(edges)]
    low = min(bins)
    high = max(bins)
    if high - low < 1e-9 * abs(high):
        return _LEVELS[3] * wide
    return "".join(_LEVELS[round(7 * (b - low) / (high - low))] for b in bins)


def past(trend: Trend) -> list[str]:
    """Every change of level, the newest first."""
    kind = trend.series.kind
    sentences = []
    for turn in reversed(trend.turns):
        what = ", ".join(turn.subject) or "nothing recorded changed that night"
        near = f"; within 2 nights: {', '.join(turn.near)}" if turn.near else ""
        back = ", back to the level before" if turn.back else ""
        sentences.append(f"{turn.date}  {size(kind, turn)}{back}: {what}{near}")
    return sentences
