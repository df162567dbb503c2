"""Print cases side by side: the time of a step, the bytes sent, the memory held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.choices import compressors
from harness.analysis.choices.compressors import EncodingCost
from harness.analysis.results import Result, results_of
from harness.base.documents import Json
from harness.base.formatting import si
from harness.cases import Arm, Form, Plan, metrics
from harness.interface.report import batches, codecs
from harness.interface.report.tabled import Table, TitledTable
from harness.interface.report.text import Column
from harness.record import RunRecord, Status
from harness.record.outcome import SEVERITY

#: The smallest number of cases in such a table. Two cases are printed as a comparison instead.
FEWEST_ARMS = 3
#: Names of metrics in narrow columns.
HEADERS = {
    "throughput_ratio": "rate", "bubble_share": "bubble", "step_s": "step", "sent_bytes": "sent",
    "time_to_loss": "to loss", "time_to_loss_ratio": "time", "samples_to_loss": "samples to loss",
    "samples_to_loss_ratio": "samples", "peak_bytes": "peak",
    "expert_load_variation": "load var", "dropped_tokens": "dropped",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BesideLine:
    """One case with its results by metric.

    ``ideal`` is the efficiency that its pipeline schedule allows. ``cost`` is the cost of encoding
    if compressors are compared.
    """

    arm: Arm
    results: Mapping[str, Result]
    ideal: float | None
    cost: EncodingCost | None = None


def plans(run: RunRecord) -> list[Plan]:
    """Return the plans that compare cases and are no scaling sweep.

    These plans have more than two cases, or two cases without a threshold. Results of two cases
    without a threshold would be printed nowhere else.
    """
    return [
        plan
        for plan in run.plans
        if (run.complete or any(r.value is not None for r in results_of(run, plan.hash)))
        and (len(plan.arms) >= FEWEST_ARMS or (len(plan.arms) > 1 and _unjudged(run, plan)))
        and plan.contrasts
        and {contrast.against for contrast in plan.contrasts} <= {"nothing", "other"}
    ]


def _unjudged(run: RunRecord, plan: Plan) -> bool:
    of_plan = results_of(run, plan.hash)
    return bool(of_plan) and all(result.status is Status.RECORDED for result in of_plan)


def of_plan(run: RunRecord, plan: Plan, rates: Sequence[float] = codecs.RATES) -> TitledTable:
    """Return the table of one plan; ratios are relative to its first case.

    Args:
        rates: link rates in bit/s, for which the table has the steps of compressors.
    """
    costs = compressors.costs(run, plan) if codecs.compared(plan) else []
    link_rate = compressors.link_bps(run, plan.arms[0].case)
    by_name = {cost.name: cost for cost in costs}
    named = {c.name: c for c in plan.contrasts}
    by_arm: dict[str, dict[str, Result]] = {}
    for result in results_of(run, plan.hash):
        if result.contrast in named:
            contrast = named[result.contrast]
            by_arm.setdefault(contrast.subject, {})[contrast.metric] = result
    lines = []
    for arm in plan.arms:
        expected = run.described[arm.case.hash].expected if arm.case.hash in run.described else None
        ideal = expected.ideal_efficiency if expected and expected.stages > 1 else None
        lines.append(
            BesideLine(
                arm=arm, results=by_arm.get(arm.name, {}), ideal=ideal, cost=by_name.get(arm.name)
            )
        )
    asked = list(dict.fromkeys(c.metric for c in plan.contrasts))
    of_codecs = codecs.columns(costs, link_rate, rates) if costs else ()
    table = Table(columns=[*_columns(asked, of_codecs)], rows=lines)
    explained = [*notes(plan), *(codecs.notes(costs, link_rate) if costs else ())]
    return TitledTable(
        title=plan.name,
        table=table,
        notes=explained,
        curves=codecs.curves(costs, link_rate),
        x_label="link rate, Gbit/s",
        y_label="step, ms",
    )


def _columns(
    asked: Sequence[str], of_codecs: Iterable[Column[EncodingCost]]
) -> Iterator[Column[BesideLine]]:
    yield Column("", 99, lambda line: line.arm.name, left=True)
    for name in asked:
        yield _column(name, 90 - asked.index(name))
        if name == "bubble_share":
            yield Column("at best", 50, _left)
    for column in of_codecs:
        yield _of_cost(column)
    yield Column("", 95, _worst, left=True)


def _of_cost(column: Column[EncodingCost]) -> Column[BesideLine]:
    """Return a column of costs whose cell is empty for a case without costs."""
    raw = column.raw

    def value(line: BesideLine) -> Json:
        return None if line.cost is None or raw is None else raw(line.cost)

    return Column(
        column.header,
        column.keep,
        lambda line: "" if line.cost is None else column.cell(line.cost),
        raw=None if raw is None else value,
    )


def _column(name: str, keep: int) -> Column[BesideLine]:
    metric = metrics.metric(name)

    def cell(line: BesideLine) -> str:
        result = line.results.get(name)
        if result is None or result.value is None:
            return "n/a" if result is not None else "1" if metric.form is not Form.ABSOLUTE else ""
        if metric.unit == "1" and metric.form is Form.ABSOLUTE:
            return f"{result.value:.1%}"
        return f"{result.value:.3g}" if metric.unit == "1" else si(result.value, metric.unit)

    def raw(line: BesideLine) -> float | None:
        result = line.results.get(name)
        return None if result is None else result.value

    return Column(HEADERS.get(name, name), keep, cell, raw=raw)


def _left(line: BesideLine) -> str:
    """Return the share of the pipeline bubble that the schedule leaves with equal stages."""
    return "" if line.ideal is None else f"{1 - line.ideal:.1%}"


def _worst(line: BesideLine) -> str:
    """Return the worst verdict of the case, or an empty text if no threshold applies to it."""
    statuses = sorted((result.status for result in line.results.values()), key=SEVERITY.index)
    return "" if not statuses or statuses[0] is Status.RECORDED else str(statuses[0])


def notes(plan: Plan) -> list[str]:
    """Return notes that explain the columns."""
    of = {
        HEADERS.get(contrast.metric, contrast.metric): metrics.metric(contrast.metric)
        for contrast in plan.contrasts
    }
    ratios = [name for name, metric in of.items() if metric.form is not Form.ABSOLUTE]
    sentences = (
        [f"{', '.join(ratios)}: relative to {plan.arms[0].name}, in the same blocks"]
        if ratios
        else []
    )
    if plan.to_loss is not None and any(m.of_loss for m in of.values()):
        sentences.append(
            f"to loss: until the loss is {plan.to_loss:g} nats above the entropy of the data"
        )
    return sentences


def tables(run: RunRecord) -> list[TitledTable]:
    """Return the table of every plan that compares cases."""
    return [of_plan(run, plan) for plan in plans(run)]


def plan_tables(run: RunRecord) -> list[TitledTable]:
    return [*tables(run), *codecs.tuned_tables(run), *batches.tables(run)]


def lines(run: RunRecord, width: int) -> list[str]:
    """Return the tables of all plans as lines for a terminal."""
    return [line for table in plan_tables(run) for line in table.lines(width)]
