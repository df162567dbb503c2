"""Prepare the verdicts of a page, worst first, each with its pairs as dots."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from harness.analysis.results import Result, ranked, results
from harness.cases import Threshold
from harness.interface.report import figures
from harness.interface.report.page import svg
from harness.record import Reason, RunRecord


def judged(
    run: RunRecord,
    anchors: Mapping[str, str],
    past: Mapping[tuple[str, str, str], Sequence[float]],
) -> list[dict[str, Any]]:
    """Return a row for each verdict.

    ``anchors`` maps a case's hash to its anchor in the page. ``past`` holds the values of earlier
    runs (``earlier.values``).
    """
    scales = _scales(run)
    rules = {threshold.name: threshold for threshold in run.thresholds}
    return [
        _row(result, rules.get(result.rule or ""), scales.get(result.metric, (0.0, 1.0)))
        | {
            "anchor": anchors.get(result.case_hash, ""),
            "number": i,
            "past": _past(result, rules.get(result.rule or ""), past),
        }
        for i, result in enumerate(ranked(run))
    ]


def _past(
    result: Result,
    rule: Threshold | None,
    past: Mapping[tuple[str, str, str], Sequence[float]],
) -> Markup:
    """Return a drawing of the values of earlier runs and of this one, or nothing without them."""
    earlier = past.get((result.case_hash, result.metric, result.against), ())
    if result.value is None or not earlier:
        return Markup("")
    values = [*earlier, result.value]
    write = figures.show(result)
    label = f"{len(values)} runs, oldest first: {', '.join(map(write, values))}"
    return Markup(svg.history(values, _bounds(rule), label))


def _bounds(rule: Threshold | None) -> list[float]:
    ends = (rule.at_least, rule.at_most) if rule else ()
    return [end for end in ends if end is not None]


def _scales(run: RunRecord) -> dict[str, tuple[float, float]]:
    """Return one scale for all strips of a metric, so that equal positions mean equal values."""
    rules = {threshold.name: threshold for threshold in run.thresholds}
    values_of: dict[str, list[float]] = {}
    for result in results(run):
        rule = rules.get(result.rule or "")
        ends = (result.low, result.high, *((rule.at_least, rule.at_most) if rule else ()))
        values_of.setdefault(result.metric, []).extend(
            [*result.pairs, *result.again, *(end for end in ends if end is not None)]
        )
    return {metric: (min(values), max(values)) for metric, values in values_of.items() if values}


def _row(result: Result, rule: Threshold | None, scale: tuple[float, float]) -> dict[str, Any]:
    bounds = _bounds(rule)
    write = figures.show(result)

    def shown(value: float | None) -> str:
        return "" if value is None else write(value)

    again = svg.strip(result.again, None, None, bounds, scale) if result.again else ""
    return {
        "status": str(result.status),
        "waived": result.waived,
        "case": result.case,
        "stand_in": result.stand_in,
        "metric": figures.metric(result),
        "value": figures.value(result),
        "interval": figures.interval(result),
        "bound": result.bound,
        "strip": Markup(svg.strip(result.pairs, result.low, result.high, bounds, scale)),
        "again": Markup(again),
        "order": "" if result.value is None else f"{result.value:.6g}",
        "p95": shown(result.p95),
        "worst": shown(result.worst),
        "lag1": "" if result.lag1 is None else f"{result.lag1:+.2f}",
        "n": result.n or "",
        "mde": "" if result.mde is None else f"{result.mde * 100:.1f}%",
        "why": "" if result.reason in (Reason.MET, Reason.NO_RULE) else result.detail,
    }
