"""Prepare the section of each case: its specification, launches, pairs, bytes and checks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.judging import blockers
from harness.analysis.judging.points import budgets
from harness.analysis.ladder import ArmRow, arm_row
from harness.analysis.results import Result, results_of_case
from harness.base.documents import Json
from harness.base.formatting import rate, si
from harness.cases import Plan
from harness.interface.report import figures
from harness.interface.report.page import measured, spent
from harness.interface.report.page.measured import Drawing, RankRow
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column
from harness.record import Check, CollectiveCount, LaunchRecord, Purpose, Reason, RunRecord
from harness.record.outcome import SEVERITY

#: The number of cases that have drawings. Cases with the worst verdicts come first; the other cases
#: have tables only.
DRAWN = 48


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of the page: its row in the table of cases, and its section."""

    anchor: str
    status: str
    row: ArmRow
    gate: str
    gate_ok: bool
    figures: Mapping[str, Json]
    spec: Sequence[tuple[str, str]]
    launches: Table[Any]
    verdicts: Table[Any]
    bytes: Table[Any]
    checks: Table[Any]
    ranks: Sequence[RankRow]
    drawn: Sequence[Drawing]
    operators: Sequence[tuple[str, int, str]]
    folders: Sequence[tuple[str, str]]
    unsure: Sequence[str]

    @property
    def document(self) -> dict[str, Json]:
        """Every number of this case."""
        return {
            **self.figures,
            "launches": self.launches.records(),
            "pairs": self.verdicts.records(),
            "bytes": self.bytes.records(),
            "checks": self.checks.records(),
            "ranks": [
                {"rank": rank.name, "step_ms": rank.step_ms, "cores": rank.cores, "peak": rank.peak}
                for rank in self.ranks
            ],
        }


def anchors(run: RunRecord) -> dict[str, str]:
    """Return the anchor of each case's section by case hash. Each case has a unique anchor."""
    by_hash: dict[str, str] = {}
    taken: set[str] = set()
    cases = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    for case_hash, case in cases.items():
        name = "case-" + re.sub(r"[^\w-]+", "-", case.id)
        by_hash[case_hash] = f"{name}-{case_hash[:4]}" if name in taken else name
        taken.add(by_hash[case_hash])
    return by_hash


def cases(run: RunRecord, folder: Path | None) -> list[Case]:
    """Return every case of a run in the order of its plans.

    ``folder`` is the run's folder, or None if its files are not available.
    """
    of_plans = {a.case.hash: (p, a) for p in reversed(run.plans) for a in reversed(p.arms)}
    order = list(dict.fromkeys(a.case.hash for p in run.plans for a in p.arms))
    names = anchors(run)
    gates = run.gates
    worst = {digest: _worst(results_of_case(run, digest)) for digest in order}
    drawn = set(sorted(order, key=lambda h: worst[h])[:DRAWN])
    shown = []
    for case_hash in order:
        plan, arm = of_plans[case_hash]
        row = arm_row(run, plan, arm)
        gate = gates.get(case_hash)
        launches = run.by_case.get(case_hash, ())
        here = folder if case_hash in drawn else None
        shown.append(_case(run, plan, row, gate, launches, names[case_hash], here))
    return shown


def _worst(judged: Sequence[Result]) -> int:
    return min((SEVERITY.index(result.status) for result in judged), default=len(SEVERITY))


def _case(
    run: RunRecord,
    plan: Plan,
    row: ArmRow,
    gate: LaunchRecord | None,
    launches: Sequence[LaunchRecord],
    anchor: str,
    folder: Path | None,
) -> Case:
    judged = results_of_case(run, row.case.hash)
    failure = blockers.gate_failure(gate) if gate else None
    caught = any(result.reason is Reason.CAUGHT for result in judged)
    checks = gate.ranks[0].checks if gate and gate.ranks else ()
    unchecked = "in every launch" if row.case.script else "not checked"
    passed = f"all {len(checks)} checks pass" if gate else unchecked
    profiled = budgets(run, row.case)
    budget = profiled[0].budget if profiled else None
    drawn = list(measured.figures(run, folder, plan, launches)) if folder else []
    if budget is not None and len(budget.ranks) > 1:
        message = "the mean step of every rank, from a profiled launch"
        drawn.append(
            Drawing(title="Where each rank's time went", svg=spent.ranks(budget), note=message)
        )
    return Case(
        anchor=anchor,
        status=str(SEVERITY[_worst(judged)]) if judged else "",
        row=row,
        gate=f"injected fault caught, as expected: {failure}" if caught else failure or passed,
        gate_ok=caught or (gate is not None and failure is None),
        figures=_figures(row),
        spec=_spec(row),
        launches=Table(columns=_LAUNCH, rows=launches),
        verdicts=_verdicts(judged),
        bytes=_bytes(row, gate),
        checks=_checks(checks),
        ranks=measured.ranks(folder, launches) if folder else [],
        drawn=drawn,
        operators=[
            (operator.name, operator.count, f"{operator.self_ns / 1e6:.3f}")
            for operator in (budget.operators if budget else ())
        ],
        folders=[(str(launch.purpose), launch.launch) for launch in launches],
        unsure=budget.unsure if budget else (),
    )


def _figures(row: ArmRow) -> dict[str, Json]:
    """Return the numbers of the case in the table of cases, in SI units."""
    names = ("throughput", "step_s", "p95_s", "worst_s", "sent_bytes", "peak_bytes", "growth",
             "flops", "mfu", "energy_j", "tokens_per_s", "sent_of_form")  # fmt: skip
    return {"case": row.case.id, "launches": len(row.launches)} | {
        name: getattr(row, name) for name in names
    }


def _spec(row: ArmRow) -> list[tuple[str, str]]:
    """Return the specification of a case and the values that follow from it."""
    fields = [(name, value) for name, value in row.case.series.items()]
    facts = row.described.facts if row.described else None
    expected = row.described.expected if row.described else None
    if facts is not None:
        fields.append(("parameters", f"{facts.num_params:,}"))
        fields.append(("FLOP a sample", si(facts.flops_per_sample)))
    if expected is not None:
        fields.append(("samples a step", f"{expected.global_batch:,}"))
        fields.append(
            (
                "memory of a rank, predicted by its closed form",
                si(float(expected.memory_bytes), "B"),
            )
        )
    ran = row.launches[0].ranks[0].ran if row.launches else None
    if ran is not None:
        observed = (ran.module, ran.schedule, ran.compressor, ran.compute_dtype)
        fields.append(("what ran", " ".join(filter(None, observed))))
    return [(name, value) for name, value in fields if value]


def _ms(header: str, name: str) -> Column[LaunchRecord]:
    def value(x: LaunchRecord) -> float | None:
        return None if x.steps is None else float(getattr(x.steps, name))

    def cell(x: LaunchRecord) -> str:
        return "" if (v := value(x)) is None else f"{v * 1e3:.2f}"

    return Column(header, 9, cell, raw=value)


def _told(header: str, name: str, unit: str, scale: float = 1.0) -> Column[LaunchRecord]:
    def cell(x: LaunchRecord) -> str:
        value = getattr(x, name)
        return "" if value is None else f"{value:.1%}" if unit == "%" else si(value * scale, unit)

    return Column(header, 9, cell, raw=lambda x: getattr(x, name))


def _ended(x: LaunchRecord) -> str:
    if x.usable:
        return ""
    return "; ".join([*x.wrong, *([x.cause.message] if x.cause else [])]) or str(x.status)


_LAUNCH: Sequence[Column[LaunchRecord]] = (
    Column("launch", 9, lambda x: x.launch.rpartition("-")[2], left=True),
    Column("for", 9, lambda x: str(x.purpose), left=True),
    Column("block", 9, lambda x: str(x.block) if x.purpose is Purpose.TIMED else ""),
    Column("turn", 9, lambda x: str(x.turn) if x.purpose is Purpose.TIMED else ""),
    Column(
        "samples/s",
        9,
        lambda x: rate(x.throughput) if x.throughput else "",
        raw=lambda x: x.throughput,
    ),
    _ms("mean ms", "mean_s"),
    _ms("median", "median_s"),
    _ms("p95", "p95_s"),
    _ms("worst", "worst_s"),
    _told("sent a step", "sent_bytes", "B"),
    _told("peak memory", "peak_bytes", "B"),
    _told("cores denied", "denied", "%"),
    Column("ended", 9, _ended, left=True),
)


def _verdicts(judged: Sequence[Result]) -> Table[Result]:
    """Return every result of a case with all of its pairs, in the order of measurement."""

    def values(result: Result, pairs: Sequence[float]) -> str:
        return " ".join(map(figures.show(result, ".4f"), pairs))

    return Table(
        columns=[
            Column[Result]("verdict", 9, lambda r: str(r.status), left=True),
            Column("metric", 9, lambda r: r.metric, left=True),
            Column("against", 9, lambda r: r.against, left=True),
            Column("value", 9, lambda r: figures.value(r, ".4f"), raw=lambda r: r.value),
            Column("interval", 9, lambda r: figures.interval(r, ".4f"), left=True),
            Column("bound", 9, lambda r: r.bound, left=True),
            Column("pairs", 9, lambda r: values(r, r.pairs), left=True),
            Column("confirmed by", 9, lambda r: values(r, r.again), left=True),
        ],
        rows=judged,
    )


def _bytes(row: ArmRow, gate: LaunchRecord | None) -> Table[tuple[str, str, str]]:
    """Return the sent bytes next to the closed form, and the collectives that sent them."""
    expected = row.described.expected if row.described else None
    if expected is None or row.case.world_size == 1:
        return Table(columns=[], rows=[])
    wanted = max(expected.sent_bytes)
    rows = [
        (
            "sent by the busiest rank in a step",
            "not counted" if row.sent_bytes is None else si(row.sent_bytes, "B"),
            f"{si(wanted, 'B')} = {expected.formula}",
        )
    ]
    issued: Mapping[str, CollectiveCount] = gate.ranks[0].issued if gate and gate.ranks else {}
    for name in dict.fromkeys([*issued, *expected.payload_bytes]):
        issued_here = issued.get(name)
        payload = expected.payload_bytes.get(name)
        rows.append(
            (
                f"{name}, rank 0",
                "not recorded"
                if issued_here is None
                else f"{si(float(issued_here.payload_bytes), 'B')} in {issued_here.count}",
                "not specified" if payload is None else si(payload[0], "B"),
            )
        )
    columns = [
        Column[tuple[str, str, str]]("bytes", 9, lambda r: r[0], left=True),
        Column("measured", 9, lambda r: r[1]),
        Column("closed form", 9, lambda r: r[2], left=True),
    ]
    return Table(columns=columns, rows=rows)


def _checks(checks: Sequence[Check]) -> Table[Check]:
    """Return the table of the correctness checks."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}"

    return Table(
        columns=[
            Column[Check]("check", 9, lambda c: c.name, left=True),
            Column("holds", 9, lambda c: "yes" if c.ok else "NO", left=True),
            Column("value", 9, lambda c: number(c.value), raw=lambda c: c.value),
            Column("limit", 9, lambda c: number(c.limit), raw=lambda c: c.limit),
            Column("detail", 9, lambda c: c.detail, left=True),
        ],
        rows=checks,
    )
