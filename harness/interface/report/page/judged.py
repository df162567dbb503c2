"""The verdicts of a page, worst first, each with its pairs as dots."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from harness.base.formatting import si
from harness.cases import Form, Threshold, metrics
from harness.interface.report.page import svg
from harness.interface.report.scaling import judged_interval
from harness.record import Reason, RunRecord, Verdict
from harness.record.outcome import SEVERITY


def judged(run: RunRecord, anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each verdict. ``anchors``: case hash -> its page."""
    scales = _scales(run)
    rules = {threshold.name: threshold for threshold in run.thresholds}
    ranked = sorted(run.verdicts, key=lambda verdict: SEVERITY.index(verdict.status))
    return [
        _verdict(
            run, verdict, rules.get(verdict.rule or ""), scales.get(verdict.metric, (0.0, 1.0))
        )
        | {"anchor": anchors.get(verdict.case_hash, ""), "number": i}
        for i, verdict in enumerate(ranked)
    ]


def _scales(run: RunRecord) -> dict[str, tuple[float, float]]:
    """One scale for all strips of a metric: the same place means the same value."""
    rules = {threshold.name: threshold for threshold in run.thresholds}
    values_of: dict[str, list[float]] = {}
    for verdict in run.verdicts:
        rule = rules.get(verdict.rule or "")
        ends = (verdict.low, verdict.high, *((rule.at_least, rule.at_most) if rule else ()))
        values_of.setdefault(verdict.metric, []).extend(
            [*verdict.pairs, *verdict.again, *(end for end in ends if end is not None)]
        )
    return {metric: (min(values), max(values)) for metric, values in values_of.items() if values}


def _verdict(
    run: RunRecord, v: Verdict, rule: Threshold | None, scale: tuple[float, float]
) -> dict[str, Any]:
    metric = metrics.metric(v.metric)
    bounds = [b for b in (rule.at_least, rule.at_most) if b is not None] if rule else []
    absolute = metric.form is Form.ABSOLUTE

    def show(x: float | None) -> str:
        return "" if x is None else si(x, metric.unit) if absolute else f"{x:.3f}"

    plan = run.plan_of.get(v.plan)
    cases = (arm.case for arm in plan.arms) if plan is not None else ()
    stand_in = any(run.stand_ins(case) for case in cases if case.id == v.case)
    return {
        "status": str(v.status),
        "waived": v.waived,
        "case": v.case,
        "stand_in": stand_in,
        "metric": v.metric if absolute or v.against == "gate" else f"{v.metric} v {v.against}",
        "value": show(v.value),
        "interval": judged_interval(v, show),
        "bound": v.bound,
        "strip": Markup(svg.strip(v.pairs, v.low, v.high, bounds, scale)),
        "again": Markup(svg.strip(v.again, None, None, bounds, scale)) if v.again else "",
        "order": "" if v.value is None else f"{v.value:.6g}",
        "p95": show(v.p95),
        "worst": show(v.worst),
        "lag1": "" if v.lag1 is None else f"{v.lag1:+.2f}",
        "n": v.n or "",
        "mde": "" if v.mde is None else f"{v.mde * 100:.1f}%",
        "why": "" if v.reason in (Reason.MET, Reason.NO_RULE) else v.detail,
    }
