"""Trends: every metric of every case over the nightly runs, judged together.

    nightly runs -> NightSeries (a hardware class, a case, a quantity) -> changes of level
    -> Trend: a status, the size, the first run of the new level, and the software that changed

A night is one nightly run. A level is a period in which the values vary only by chance.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from harness.analysis.judging.fingerprint import between
from harness.features.history import scan
from harness.features.history.asv_results import machine
from harness.features.history.night import QUANTITIES, KeptFigure, Night, Quantity, Value
from harness.features.history.scan import Change, Size

#: Accepted share of false alarms among the changes that a nightly run reports.
FALSE_SHARE = 0.05
#: Smallest change in a single nightly run that requests another run. It is a relative change, or a
#: difference for quantities in points.
LEAP = 0.10
#: A change is reported if it is among this many newest nights. Older levels count as usual.
RECENT = 60
#: The reason that is shown instead of a cause if a straight line explains the values nearly as well
#: as a step.
SLOWLY = "the change may be sudden or gradual, so no nightly run is blamed"
#: Smallest number of days on which a new level must be measured before it is reported.
FEWEST_DAYS = 2
#: A series counts as unstable if it has at least this many changes of level in ``RECENT`` nights.
RESTLESS = 3
#: Number of nights before and after a change in which its cause may lie, because the first night of
#: a level is known to within two nights.
AROUND = 2


class TrendStatus(StrEnum):
    """The state of a series according to its newest nights, from the worst to the best."""

    ERRORED = "errored"
    REGRESSED = "regressed"
    UNCONFIRMED = "unconfirmed"
    SUSPICIOUS = "suspicious"
    DRIFTING = "drifting"
    IMPROVED = "improved"
    NOT_COMPARABLE = "not_comparable"
    INSUFFICIENT = "insufficient"
    STABLE = "stable"


@dataclass(frozen=True, kw_only=True)
class NightSeries:
    """One quantity of one case on one machine.

    ``nights`` are the nightly runs that are comparable with the newest one, and ``values`` holds
    one value for each of them. ``num_unlike`` is the number of nights with a different fingerprint,
    and ``unlike`` lists the differences. ``latest`` holds the values of the case in the newest
    night. ``nodes`` identifies the nodes of each night.
    """

    machine: str
    case: str
    quantity: str
    nights: tuple[Night, ...]
    values: tuple[Value, ...]
    unlike: tuple[str, ...]
    num_unlike: int
    latest: KeptFigure
    nodes: tuple[str, ...] = ()

    @property
    def kind(self) -> Quantity:
        """The quantity, with its unit and the smallest change that counts."""
        return QUANTITIES[self.quantity]

    @property
    def scaled(self) -> list[float]:
        """The values whose differences are the sizes of changes.

        They are logarithms, or unchanged values if the quantity is in points.
        """
        numbers = [value.value for value in self.values]
        return numbers if self.kind.points else [math.log(max(number, 1e-12)) for number in numbers]

    def size(self, difference: float) -> float:
        """Convert a difference of ``scaled`` values to a relative change, or to points."""
        return difference if self.kind.points else math.expm1(difference)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A change of level: the first night of the new level, and its size with an interval.

    ``p`` is the probability of so large a change by chance. ``subject`` lists the software versions
    that changed since the night before, and ``near`` the versions that changed at most two nights
    before or after. ``back`` is set if the series returned to the level before its previous change.
    ``certain`` is set if a dependence between nights does not explain the change.
    """

    run: str
    date: str
    index: int
    p: float
    size: float
    low: float
    high: float
    subject: tuple[str, ...]
    near: tuple[str, ...]
    back: bool = False
    certain: bool = True


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A series with its status.

    ``turns`` are all its changes of level, oldest first. ``dependence`` is the correlation of
    successive nights, or 0 if they may be independent. If ``sudden`` is false, the change may also
    have been gradual.
    """

    series: NightSeries
    status: TrendStatus
    turns: tuple[Turn, ...] = ()
    why: str = ""
    dependence: float = 0.0
    sudden: bool = True

    @property
    def last(self) -> Turn | None:
        """The newest change of level, or None."""
        return self.turns[-1] if self.turns else None


def trends(nights: Sequence[Night], case: str = "", quantity: str = "") -> list[Trend]:
    """Return the trend of every series of these nights (oldest first), the worst first.

    False alarms are controlled over all series of the newest night (Benjamini & Hochberg 1995).
    ``case`` and ``quantity`` therefore select what is returned, not what is judged.
    """
    judged = [_judged(series) for series in all_series(nights)]
    explained = _explained(_controlled(judged))
    chosen = [
        trend
        for trend in explained
        if case in trend.series.case and quantity in ("", trend.series.quantity)
    ]
    order = list(TrendStatus)
    return sorted(chosen, key=lambda trend: (order.index(trend.status), trend.series.case))


def all_series(nights: Sequence[Night]) -> Iterator[NightSeries]:
    """Yield a series for each machine, case and quantity of the nights."""
    by_case: dict[tuple[str, str], list[tuple[Night, KeptFigure]]] = {}
    for night in nights:
        for case, kept in night.cases.items():
            by_case.setdefault((machine(night, kept.stand_in), case), []).append((night, kept))
    for (name, case), every in by_case.items():
        latest = every[-1][1]
        printed = _print(*every[-1])
        alike = [(n, figure) for n, figure in every if _print(n, figure) == printed]
        unlike = [(n, figure) for n, figure in every if _print(n, figure) != printed]
        differs = between(_print(*unlike[-1]), printed) if unlike else []
        for quantity in QUANTITIES:
            with_it = [
                (n, figure.values[quantity]) for n, figure in alike if quantity in figure.values
            ]
            if not with_it and not (latest.error and quantity == "step_time"):
                continue
            yield NightSeries(
                machine=name,
                case=case,
                quantity=quantity,
                latest=latest,
                nights=tuple(n for n, _ in with_it),
                values=tuple(v for _, v in with_it),
                nodes=tuple(figure.nodes for _, figure in alike if quantity in figure.values),
                unlike=tuple(differs),
                num_unlike=len(unlike),
            )


def _print(night: Night, kept: KeptFigure) -> Mapping[str, str]:
    """Return the fields that must be equal for two nights to be comparable.

    They are the fingerprint of the run and the hash of the case's definition. A night in which the
    case failed has no values. It does not interrupt the series.
    """
    return {**night.fingerprint, "definition of the case": kept.hash}


def _judged(series: NightSeries) -> Trend:
    """Return the trend of one series, before false alarms are controlled over all series."""
    if series.latest.error:
        return Trend(series=series, status=TrendStatus.ERRORED, why=series.latest.error)
    n = len(series.values)
    x = series.scaled
    if n < scan.ENOUGH:
        status = TrendStatus.INSUFFICIENT
        why = f"{n} of {scan.ENOUGH} runs"
        if series.num_unlike:
            status = TrendStatus.NOT_COMPARABLE
            why += f" since {'; '.join(series.unlike)} ({series.num_unlike} earlier nights differ)"
        if scan.leap(x, math.log1p(LEAP)):
            status = TrendStatus.SUSPICIOUS
            why = _leapt(series)
        return Trend(series=series, status=status, why=why)
    levels = scan.without_nodes(np.array(x), series.nodes)
    floor = _floor(series.kind)
    turns = _turns(series, levels, scan.changes(x, floor, nodes=series.nodes))
    sudden = not turns or scan.sudden(levels, [turn.index for turn in turns])
    if drift := scan.drift(x, floor, series.nodes):
        if not turns or not sudden:
            far = shown_size(series.kind, series.size(drift))
            why = f"{far} in {n} nights, gradually: no single night is to blame"
            return Trend(series=series, status=TrendStatus.DRIFTING, why=why)
    trend = Trend(
        series=series,
        status=TrendStatus.STABLE,
        turns=turns,
        dependence=scan.dependence(levels),
        sudden=sudden,
    )
    last = trend.last
    if last is not None and not last.back and n - last.index <= RECENT:
        status = TrendStatus.REGRESSED if last.size > 0 else TrendStatus.IMPROVED
        return replace(trend, status=status)
    if scan.leap(x, math.log1p(LEAP)):
        return replace(trend, status=TrendStatus.SUSPICIOUS, why=_leapt(series))
    if last is not None:
        message = "back to its earlier level since" if last.back else "unchanged since"
        return replace(trend, why=f"{message} {last.date}")
    if trend.dependence:
        return replace(trend, why=f"successive nights are correlated ({trend.dependence:.1f})")
    return trend


def _floor(kind: Quantity) -> float:
    """Return the smallest change of level that counts, on the scale of ``NightSeries.scaled``."""
    return kind.floor if kind.points else math.log1p(kind.floor)


def _leapt(series: NightSeries) -> str:
    """Return why a series is suspicious: the size of its newest night's jump."""
    usual = float(np.median(series.scaled[-scan.ENOUGH - 1 : -1]))
    far = series.size(series.scaled[-1] - usual)
    return (
        f"{shown_size(series.kind, far)} in the newest night: one night is no proof, measure again"
    )


def _turns(series: NightSeries, x: np.ndarray, changes: Sequence[Change]) -> tuple[Turn, ...]:
    """Return the changes of level of a series, with what changed in the software."""
    turns: list[Turn] = []
    for i, change in enumerate(changes):
        index, size = change.at, change.size
        after = x[index : changes[i + 1].at if i + 1 < len(changes) else len(x)]
        back = False
        if i and not turns[-1].back:
            start = changes[i - 2].at if i > 1 else 0
            back = _same(scan.shift(x[start : changes[i - 1].at], after), _floor(series.kind))
        nights = series.nights
        around = range(max(1, index - AROUND), min(len(nights), index + AROUND + 1))
        near = [c for j in around if j != index for c in changed(nights[j - 1], nights[j])]
        turns.append(
            Turn(
                run=nights[index].run,
                date=nights[index].started_at[:10],
                index=index,
                p=change.p,
                size=series.size(size.by),
                low=series.size(size.low),
                high=series.size(size.high),
                subject=tuple(changed(nights[index - 1], nights[index])),
                near=tuple(near),
                back=back,
                certain=change.certain,
            )
        )
    return tuple(turns)


def _same(size: Size, floor: float) -> bool:
    """Return whether a difference of levels is too small or too uncertain to count."""
    return abs(size.by) < floor or size.low <= 0.0 <= size.high


def changed(before: Night, after: Night) -> list[str]:
    """Return the differences in software between two nights, for example ``torch 2.13.0 ->
    2.14.0``.
    """
    a = before.subject
    b = after.subject
    return [
        f"{name} {a.get(name, 'none')} -> {b.get(name, 'none')}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _controlled(judged: Sequence[Trend]) -> list[Trend]:
    """Return the trends after the control of false alarms over all series.

    An alarm that may be chance among so many series becomes SUSPICIOUS.
    """
    alarms = [
        trend for trend in judged if trend.status in (TrendStatus.REGRESSED, TrendStatus.IMPROVED)
    ]
    family = sum(len(trend.series.values) >= scan.ENOUGH for trend in judged)
    ps = sorted(alarm.last.p for alarm in alarms if alarm.last is not None)
    limit = max((p for i, p in enumerate(ps, 1) if p <= FALSE_SHARE * i / family), default=-1.0)
    why = f"may be chance among {family} series"
    return [
        replace(trend, status=TrendStatus.SUSPICIOUS, why=why)
        if trend in alarms and trend.last is not None and trend.last.p > limit
        else trend
        for trend in judged
    ]


def _explained(judged: Sequence[Trend]) -> list[Trend]:
    """Return the trends with an explanation of each alarm.

    An alarm becomes UNCONFIRMED if its new level must first be measured on another day, on other
    nodes or with a control. A control in the same run separates changes of the machine from changes
    of the software.
    """
    by_key = {(t.series.machine, t.series.case, t.series.quantity): t for t in judged}
    explained = []
    for trend in judged:
        series, last = trend.series, trend.last
        if trend.status not in (TrendStatus.REGRESSED, TrendStatus.IMPROVED) or last is None:
            explained.append(trend)
            continue
        control = by_key.get((series.machine, series.case, "step_time_to_control"))
        if lacks := _unconfirmed(trend, last, control):
            explained.append(replace(trend, status=TrendStatus.UNCONFIRMED, why=lacks))
            continue
        why = SLOWLY if not trend.sudden else _blame(series, last, control)
        if trend.dependence:
            why += (
                f"; successive nights are correlated ({trend.dependence:.1f}), but the change is"
                " larger than this explains"
            )
        explained.append(replace(trend, why=why))
    return explained


def _unconfirmed(trend: Trend, last: Turn, control: Trend | None) -> str:
    """Return why a new level is not confirmed yet, or an empty string if it is.

    All measurements of a session, a day or a node can be shifted without a change of the software.
    A level must therefore last for more than a day. In addition, either the ratio to the pinned
    control must have changed too, or the nodes must be recorded and no other explanation likely.
    """
    series = trend.series
    days = {night.started_at[:10] for night in series.nights[last.index :]}
    if len(days) < FEWEST_DAYS:
        return "measured on one day only: measure it again on another day"
    if control is not None and control.status in (
        TrendStatus.REGRESSED,
        TrendStatus.IMPROVED,
        TrendStatus.UNCONFIRMED,
    ):
        return ""
    elsewhere = "measure it on other nodes, or with a pinned control"
    if not all(series.nodes[last.index - AROUND : last.index + AROUND]):
        return f"its nodes were not recorded, so a different node may be the cause: {elsewhere}"
    newest = len(series.values)
    recent = [turn for turn in trend.turns if newest - turn.index <= RECENT]
    if len(recent) >= RESTLESS:
        return f"unstable, its level changed {len(recent)} times in {RECENT} nights: {elsewhere}"
    if not last.certain:
        return f"a random walk or a drift explains it nearly as well: {elsewhere}"
    return ""


def _blame(series: NightSeries, last: Turn, control: Trend | None) -> str:
    """Return the likely cause of a change of level."""
    if series.quantity == "step_time" and control is not None:
        if control.status is TrendStatus.STABLE:
            return (
                "the pinned control changed as much, so the cause is the machine, not the software"
            )
        if control.status in (TrendStatus.REGRESSED, TrendStatus.IMPROVED):
            why = "the pinned control did not change, so the cause is the software"
            return f"{why}: {', '.join(last.subject)}" if last.subject else why
    if last.subject:
        return ", ".join(last.subject)
    if last.near:
        return f"within {AROUND} nights: {', '.join(last.near)}"
    return "no recorded version changed: suspect the environment"


def shown_size(kind: Quantity, size: float) -> str:
    """Return a size as ``+3.1%``, or as ``+1.2 points`` for a share."""
    return f"{100 * size:+.1f} points" if kind.points else f"{100 * size:+.1f}%"
