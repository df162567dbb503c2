"""The rows of the history report, for the terminal and the page."""

import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby

from harness.base.formatting import si
from harness.features.history import asv_results
from harness.features.history.night import Night, Quantity
from harness.features.history.trends import Trend, TrendStatus, Turn, shown_size
from harness.interface.report.text import wrap

#: The eight bars of a sparkline, and its largest number of bars.
_LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 24


def headline(trends: Sequence[Trend]) -> str:
    """Return the headline: how many figures have become worse, and since when."""
    worse = [trend for trend in trends if trend.status is TrendStatus.REGRESSED]
    broken = {trend.series.case for trend in trends if trend.status is TrendStatus.ERRORED}
    if broken:
        return f"ERROR: {len(broken)} of the cases failed in their newest nightly run"
    if worse:
        newest = max(trend.last.date for trend in worse if trend.last is not None)
        many = "figure has" if len(worse) == 1 else "figures have"
        return f"{len(worse)} {many} become worse, last on {newest}"
    judged = sum(
        trend.status not in (TrendStatus.INSUFFICIENT, TrendStatus.NOT_COMPARABLE)
        for trend in trends
    )
    if not judged:
        return f"too few runs to judge any of {len(trends)} figures"
    return f"no figure has become worse ({judged} of {len(trends)} judged)"


def counts(trends: Sequence[Trend]) -> str:
    """Return the number of trends of each status, for example ``1 regressed, 29 stable``."""
    count = Counter(trend.status for trend in trends)
    return ", ".join(f"{count[status]} {word(status)}" for status in TrendStatus if count[status])


def word(status: TrendStatus) -> str:
    """Return a status as words."""
    return str(status).replace("_", " ")


def name(trend: Trend) -> str:
    """Return the quantity of a trend as words."""
    return trend.series.quantity.replace("_", " ")


def figure(kind: Quantity, value: float) -> str:
    """Return a value with its unit."""
    return f"{value:.3f}" if kind.unit == "1" else si(value, kind.unit)


def key(trend: Trend) -> tuple[str, str]:
    """Return the names of a trend in asv: the benchmark with the case, and the machine."""
    series = trend.series
    return f"{asv_results.benchmark(series.quantity)}('{series.case}')", series.machine


def newest(trend: Trend) -> str:
    """Return the newest value of a trend, or ``-``."""
    values = trend.series.values
    return figure(trend.series.kind, values[-1].value) if values else "-"


def change(trend: Trend) -> str:
    """Return the size of the newest change of level, for example ``+4.9% [+4.5, +5.3]``."""
    return "" if trend.last is None else size(trend.series.kind, trend.last)


def size(kind: Quantity, turn: Turn) -> str:
    """Return the size of a change of level with its interval."""
    span = f"[{100 * turn.low:+.1f}, {100 * turn.high:+.1f}]"
    return f"{shown_size(kind, turn.size)} {span}"


def spark(trend: Trend) -> str:
    """Return the newest nights as a sparkline, scaled from the lowest to the highest of them."""
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
    """Return a sentence for every change of level, the newest first."""
    kind = trend.series.kind
    sentences = []
    for turn in reversed(trend.turns):
        what = ", ".join(turn.subject) or "no recorded version changed"
        near = f"; within 2 nights: {', '.join(turn.near)}" if turn.near else ""
        back = ", back to the previous level" if turn.back else ""
        sentences.append(f"{turn.date}  {size(kind, turn)}{back}: {what}{near}")
    return sentences


def lines(
    nights: Sequence[Night],
    trends: Sequence[Trend],
    width: int,
    *,
    every: bool,
    asv: Collection[tuple[str, str]] | None = None,
) -> list[str]:
    """Return the report for a terminal, with one block for each case.

    Stable figures are included only if ``every`` is set. ``asv`` holds the regressions that asv's
    own detector found, or is None if there is no page of asv.
    """
    shown = [
        t for t in trends if every or t.status not in (TrendStatus.STABLE, TrendStatus.INSUFFICIENT)
    ]
    noun = "run" if len(nights) == 1 else "runs"
    days = " to ".join(dict.fromkeys(nights[i].started_at[:10] for i in (0, -1)))
    cases = len({t.series.case for t in trends})
    machines = sorted({t.series.machine for t in trends})
    page_lines = [f" {headline(trends)}"]
    page_lines += wrap(
        f" {len(trends)} figures of {cases} case{'s' * (cases > 1)} on"
        f" {', '.join(machines)}; {len(nights)} {noun}, {days}",
        width,
        1,
    )
    page_lines.append(f" {counts(trends)}")
    place = {case: i for i, case in enumerate(dict.fromkeys(_case(t) for t in shown))}
    shown.sort(key=lambda t: place[_case(t)])
    for (machine, case), of_case in groupby(shown, key=_case):
        where = f"  ({machine})" if len(machines) > 1 else ""
        page_lines += ["", *wrap(f" {case}{where}", width, 3)]
        for trend in of_case:
            page_lines += _rows(trend, width, every, asv)
    hidden = len(trends) - len(shown)
    if hidden and not every:
        page_lines += ["", f" {hidden} more: scaleproof history CASE shows them"]
    return page_lines


def _case(trend: Trend) -> tuple[str, str]:
    """Return the machine and case of a trend."""
    return trend.series.machine, trend.series.case


def _rows(
    trend: Trend, width: int, every: bool, asv: Collection[tuple[str, str]] | None
) -> list[str]:
    """Return the lines of a trend."""
    head = f"  {word(trend.status):<14}  {name(trend):<22}{newest(trend):>9}"
    last = trend.last
    since = (
        f"since {last.date}" if last is not None and trend.status is not TrendStatus.STABLE else ""
    )
    shown = [f"{head}  {spark(trend)}".rstrip()]
    if trend.status in (TrendStatus.REGRESSED, TrendStatus.IMPROVED):
        shown += wrap(f"{'':18}{change(trend)} {since}: {trend.why}", width, 18)
        if asv is not None and trend.status is TrendStatus.REGRESSED:
            seen = "agrees" if key(trend) in asv else "does not see it"
            shown.append(f"{'':18}asv's own detector {seen}")
    elif trend.why:
        shown += wrap(f"{'':18}{trend.why}", width, 18)
    if every:
        for line in past(trend):
            shown += wrap(f"{'':18}{line}", width, 20)
    return shown
