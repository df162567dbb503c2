"""The history in the terminal: what changed first, then how many figures did not."""

from collections.abc import Collection, Sequence
from itertools import groupby

from harness.features.history.night import Night
from harness.features.history.report import told
from harness.features.history.trends import Trend, TrendStatus
from harness.interface.report.text import wrap


def lines(
    nights: Sequence[Night],
    trends: Sequence[Trend],
    width: int,
    *,
    every: bool,
    asv: Collection[tuple[str, str]] | None = None,
) -> list[str]:
    """One block a case; stable figures only with ``every``. ``asv`` is what asv itself found."""
    shown = [
        t for t in trends if every or t.status not in (TrendStatus.STABLE, TrendStatus.INSUFFICIENT)
    ]
    noun = "night" if len(nights) == 1 else "nights"
    days = f"{nights[0].started_at[:10]} to {nights[-1].started_at[:10]}"
    machines = sorted({t.series.machine for t in trends})
    page_lines = [f" {told.headline(trends)}"]
    page_lines += wrap(
        f" {len(trends)} figures of {len({t.series.case for t in trends})} cases on"
        f" {', '.join(machines)}; {len(nights)} {noun}, {days}",
        width,
        1,
    )
    page_lines.append(f" {told.counts(trends)}")
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
    return trend.series.machine, trend.series.case


def _rows(
    trend: Trend, width: int, every: bool, asv: Collection[tuple[str, str]] | None
) -> list[str]:
    head = f"  {told.word(trend.status):<14}  {told.name(trend):<22}{told.newest(trend):>9}"
    last = trend.last
    since = (
        f"since {last.date}" if last is not None and trend.status is not TrendStatus.STABLE else ""
    )
    shown = [f"{head}  {told.spark(trend)}".rstrip()]
    if trend.status in (TrendStatus.REGRESSED, TrendStatus.IMPROVED):
        shown += wrap(f"{'':18}{told.change(trend)} {since}: {trend.why}", width, 18)
        if asv is not None and trend.status is TrendStatus.REGRESSED:
            seen = "agrees" if told.key(trend) in asv else "does not see it"
            shown.append(f"{'':18}asv's own detector {seen}")
    elif trend.why:
        shown += wrap(f"{'':18}{trend.why}", width, 18)
    if every:
        for line in told.past(trend):
            shown += wrap(f"{'':18}{line}", width, 20)
    return shown
