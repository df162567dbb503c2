"""Trends: every figure of every case over its nights, judged together.

nights -> Series (a hardware class, a case, a quantity) -> changes of level -> Trend: a status, the
size, the night, and what changed in the subject that night
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

#: Of the changes that a night tells of, the share that may be false.
FALSE_SHARE = 0.05
#: A night this far from those before it asks for another run: a ratio, or points.
LEAP = 0.10
#: Changes older than this many nights are what is usual now.
RECENT = 60
#: What is said instead of a cause where a line explains the nights nearly as well as a step.
SLOWLY = "at once or slowly is not certain: no night is blamed"
#: Days on which a new level has to be seen.
FEWEST_DAYS = 2
#: Changes of level in ``RECENT`` nights from which on a figure's levels change by themselves.
RESTLESS = 3
#: Nights around a change in which its cause may lie: a level's first night is known to two.
AROUND = 2


class TrendStatus(StrEnum):
    """The state of a series by its newest nights; the worst first."""

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
    """One figure of one case on one machine. ``nights`` are those that can be compared with the
    newest, with a value each; ``unlike`` were measured under another fingerprint. ``latest`` is
    what the newest night has of the case. ``nodes`` tells where each night was measured.
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
        return QUANTITIES[self.quantity]

    @property
    def scaled(self) -> list[float]:
        """Values whose differences are sizes: logarithms, or points."""
        numbers = [value.value for value in self.values]
        return numbers if self.kind.points else [math.log(max(number, 1e-12)) for number in numbers]

    def size(self, difference: float) -> float:
        """A difference of ``scaled`` as people say it: a relative change, or points."""
        return difference if self.kind.points else math.expm1(difference)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A change of level: the first night of the new one, and its size with its interval.

    ``subject`` is what changed in the measured software from the night before, ``near`` what did so
    within two nights. ``back``: the level before the previous change was reached again.
    ``certain``: nights that depend on each other are no explanation.
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
    """A series, judged. ``turns`` are all its changes of level, oldest first. ``dependence`` is the
    correlation of neighbouring nights, 0 where they may well be independent. What is not ``sudden``
    may as well have come slowly.
    """

    series: NightSeries
    status: TrendStatus
    turns: tuple[Turn, ...] = ()
    why: str = ""
    dependence: float = 0.0
    sudden: bool = True

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None


def trends(nights: Sequence[Night], case: str = "", quantity: str = "") -> list[Trend]:
    """Every series of these nights (oldest first), judged together; the worst first.

    False alarms are controlled over all series of the newest night (Benjamini & Hochberg 1995),
    so ``case`` and ``quantity`` choose what is given back, not what is judged.
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
    """One for each machine, case and quantity of the nights."""
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
    """The fields that must be alike: the run's fingerprint, and the case as it was defined.

    A night whose case failed has no figures, and breaks no series.
    """
    return {**night.fingerprint, "definition of the case": kept.hash}


def _judged(series: NightSeries) -> Trend:
    if series.latest.error:
        return Trend(series=series, status=TrendStatus.ERRORED, why=series.latest.error)
    n = len(series.values)
    x = series.scaled
    if n < scan.ENOUGH:
        status = TrendStatus.INSUFFICIENT
        why = f"{n} of {scan.ENOUGH} nights"
        if series.num_unlike:
            status = TrendStatus.NOT_COMPARABLE
            why += f" since {'; '.join(series.unlike)} ({series.num_unlike} nights before)"
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
            why = f"{far} in {n} nights, slowly: no night of its own is to blame"
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
        message = "back to its level before" if last.back else "as it has been since"
        return replace(trend, why=f"{message} {last.date}")
    if trend.dependence:
        return replace(trend, why=f"wanders: nights depend on each other ({trend.dependence:.1f})")
    return trend


def _floor(kind: Quantity) -> float:
    return kind.floor if kind.points else math.log1p(kind.floor)


def _leapt(series: NightSeries) -> str:
    usual = float(np.median(series.scaled[-scan.ENOUGH - 1 : -1]))
    far = series.size(series.scaled[-1] - usual)
    return f"{shown_size(series.kind, far)} last night: one night decides nothing, measure again"


def _turns(series: NightSeries, x: np.ndarray, changes: Sequence[Change]) -> tuple[Turn, ...]:
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
    return abs(size.by) < floor or size.low <= 0.0 <= size.high


def changed(before: Night, after: Night) -> list[str]:
    """Names the differences between two nights: ``torch 2.13.0 -> 2.14.0``."""
    a = before.subject
    b = after.subject
    return [
        f"{name} {a.get(name, 'none')} -> {b.get(name, 'none')}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _controlled(judged: Sequence[Trend]) -> list[Trend]:
    """Alarms that would be one of many chances become suspicions."""
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
    """Whether the machine or the software changed, where a control was measured beside."""
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
            why += f"; nights depend on each other ({trend.dependence:.1f}), but by less than this"
        explained.append(replace(trend, why=why))
    return explained


def _unconfirmed(trend: Trend, last: Turn, control: Trend | None) -> str:
    """Why a new level has to be seen elsewhere before anybody is woken; empty where it was.

    What a session, a day or a node does to all its measurements is no change of what is measured.
    So a level has to last for more than a day, and has to be seen against the pinned control, or on
    nodes that are known, in nights of which nothing else is a likely explanation.
    """
    series = trend.series
    days = {night.started_at[:10] for night in series.nights[last.index :]}
    if len(days) < FEWEST_DAYS:
        return "seen on one day alone: measure it again on another day"
    if control is not None and control.status in (
        TrendStatus.REGRESSED,
        TrendStatus.IMPROVED,
        TrendStatus.UNCONFIRMED,
    ):
        return ""
    elsewhere = "measure it on other nodes, or beside a pinned control"
    if not all(series.nodes[last.index - AROUND : last.index + AROUND]):
        return f"nobody noted which nodes measured it, so another node may be all: {elsewhere}"
    newest = len(series.values)
    recent = [turn for turn in trend.turns if newest - turn.index <= RECENT]
    if len(recent) >= RESTLESS:
        return f"its level changed {len(recent)} times in {RECENT} nights: it wanders; {elsewhere}"
    if not last.certain:
        return f"nights that wander or drift explain it nearly as well: {elsewhere}"
    return ""


def _blame(series: NightSeries, last: Turn, control: Trend | None) -> str:
    if series.quantity == "step_time" and control is not None:
        if control.status is TrendStatus.STABLE:
            return "the pinned control changed as much: the machine, not the software"
        if control.status in (TrendStatus.REGRESSED, TrendStatus.IMPROVED):
            why = "the pinned control did not change: the software"
            return f"{why}: {', '.join(last.subject)}" if last.subject else why
    if last.subject:
        return ", ".join(last.subject)
    if last.near:
        return f"within {AROUND} nights: {', '.join(last.near)}"
    return "nothing that is recorded changed: suspect the environment"


def shown_size(kind: Quantity, size: float) -> str:
    """``+3.1%``, or ``+1.2 points`` of a share."""
    return f"{100 * size:+.1f} points" if kind.points else f"{100 * size:+.1f}%"
