"""One self-contained HTML page per run: verdicts, charts, cases. No network, prints well."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup  # jinja2's own dependency

from harness.analysis.judging import notices, obstacles, pairs, verdicts
from harness.analysis.judging.points import points
from harness.analysis.judging.standard import FIRST_LOOK
from harness.analysis.ladder import ArmRow, arm_row
from harness.analysis.rungs import rungs
from harness.base.documents import fields_of, to_doc
from harness.base.numbers import rate, si
from harness.host.machine import peaks
from harness.interface.report import fabric, recovery, svg, tables, timeline
from harness.interface.report.coverage import coverage
from harness.interface.report.headline import decide, headline
from harness.interface.report.svg import Curve
from harness.record import Expected, LaunchRecord, Reason, RunRecord, ScalingPoint, Term, Verdict
from harness.record.outcome import SEVERITY
from harness.spec import Form, Plan, metrics

#: Wider than any sentence: the browser wraps.
WIDE = 10_000


def render(run: RunRecord) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    counts, scales = Counter(v.status for v in run.verdicts), _scales(run)
    data = json.dumps({"run": run.run, "verdicts": to_doc(run.verdicts)}).replace("<", "\\u003c")
    return environment.get_template("page.html.jinja").render(
        run=run,
        headline=headline(run),
        decide=decide(run),
        fabric="\n".join(fabric.lines(run, 110)),
        recovery="\n".join(recovery.lines(run, 110)),
        cost=[line.strip().split(maxsplit=1)[1] for line in tables.cost(run, WIDE) if line],
        rerun=shlex.join(run.settings.argv),
        pairs=FIRST_LOOK,
        counts=[(s, counts[s]) for s in SEVERITY if counts[s]],
        notes=[*notices.findings(run), *run.notes],
        charts=_charts(run),
        stand_ins=any(run.stand_ins(a.case) for p in run.plans for a in p.arms),
        verdicts=[
            _verdict(run, v, scales.get(v.metric, (0.0, 1.0)))
            for v in sorted(run.verdicts, key=lambda v: SEVERITY.index(v.status))
        ],
        together=verdicts.together(run.verdicts),
        timelines=_timelines(run),
        explained=[line.strip() for line in timeline.remarks(run, WIDE)],
        cases=_cases(run),
        coverage=[line.split(maxsplit=1) for line in coverage(run, WIDE)],
        facts=_facts(run),
        data=Markup(data),
    )


def speedup(run: RunRecord) -> str:
    """The first chart of a run's page as a picture of its own; empty where nothing was scaled."""
    charts = [c for c in _charts(run) if c["title"].startswith("Speedup")]
    if not charts:
        return ""
    style = (
        "<style>svg{background:#fff;font-family:sans-serif}.grid{stroke:#ddd}"
        ".tick,.legend,.label{font-size:12px;fill:#333}.asked{stroke-width:2.5}</style>"
    )
    drawn = str(charts[0]["svg"]).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    head, close, rest = drawn.partition(">")
    return f"{head}{close}{style}{rest}"


def _charts(run: RunRecord) -> list[dict[str, Any]]:
    """Speedup and efficiency over ranks, one pair for each mode, hardware and stand-ins apart."""
    groups: dict[tuple[str, bool], list[Plan]] = {}
    for plan in run.plans:
        if len(points(run, plan)) > 1:
            case = plan.arms[0].case
            groups.setdefault((str(case.mode), bool(case.stand_in)), []).append(plan)
    out = []
    for (mode, stand_in), plans in sorted(groups.items(), key=lambda g: (g[0][1], g[0][0])):
        speedups, efficiencies, worlds = [], [], set()
        for plan in plans:
            rungs_ = points(run, plan)
            worlds |= {float(p.world_size) for p in rungs_}
            speedups.append(_series(run, plan, rungs_, "speedup"))
            efficiencies.append(_series(run, plan, rungs_, "efficiency"))
        grid = sorted(worlds)
        none: list[float | None] = [None] * len(grid)
        label = f"{mode} scaling" + (" · stand-in" if stand_in else "")
        for field, curves, ideal in (
            ("speedup", speedups, grid),
            ("efficiency", efficiencies, [1.0] * len(grid)),
        ):
            best = Curve(name="ideal", x=grid, y=ideal, low=none, high=none)
            drawn = svg.chart(
                curves, y_label=field, x_label="ranks", ideal=best, log=field == "speedup"
            )
            out.append({"title": f"{field.capitalize()}, {label}", "svg": Markup(drawn)})
    return out


def _series(run: RunRecord, plan: Plan, points: list[ScalingPoint], field: str) -> Curve:
    """One field of the points with its interval, the bounds of its rules and their verdicts."""

    def column(suffix: str) -> list[Any]:
        return [getattr(p, field + suffix) for p in points]

    rules = {t.name: t for t in run.thresholds}
    bounds, told = [], []
    for p in points:
        judged = [
            v
            for v in run.verdicts
            if v.plan == plan.hash and v.case == p.case and v.metric == field and v.rule in rules
            and v.against == p.against
        ]  # fmt: skip
        ends = [(rules[v.rule].at_least, rules[v.rule].at_most) for v in judged if v.rule]
        bounds += [(float(p.world_size), b) for pair in ends for b in pair if b is not None]
        told.append(", ".join(f"{v.status} {v.bound}" for v in judged))
    return Curve(
        name=plan.name, x=[float(p.world_size) for p in points], y=column(""), low=column("_low"),
        high=column("_high"), bounds=bounds, told=told,
    )  # fmt: skip


#: Okabe and Ito again, and grey for what nobody does.
_TERM_COLORS = {
    Term.COMPUTE: "#0072B2",
    Term.MOVE: "#56B4E9",
    Term.TRANSFER: "#D55E00",
    Term.WAIT: "#CC79A7",
    Term.BUBBLE: "#E69F00",
    Term.UNDIVIDED: "#D55E00",
    Term.DATA: "#009E73",
    Term.LAUNCH: "#F0E442",
    Term.IDLE: "#9aa0a6",
    Term.OTHER: "#5f6368",
}


def _timelines(run: RunRecord) -> list[dict[str, Any]]:
    """A bar for every rank of each profiled rung; dashed is what the baseline's step allows."""
    names = timeline.TERMS
    colors = {names[t]: color for t, color in _TERM_COLORS.items()}
    out = []
    for rung in rungs(run):
        bars = [
            svg.Bar(
                name=f"rank {r.rank}", parts=[(names[t], r.mean_ns(t) / 1e6) for t in _TERM_COLORS]
            )
            for r in rung.budget.ranks
        ]
        ideal = float(rung.losses.ideal_ns) / 1e6
        out.append(
            {
                "title": rung.arm.case.id,
                "capture": rung.budget.capture,
                "against": rung.against,
                "svg": Markup(svg.stacked(bars, colors, unit="ms", mark=ideal)),
                "perturbation": f"{rung.perturbation:.2f}",
                "refused": rung.refused,
                "operators": [
                    (o.name, o.count, f"{o.self_ns / 1e6:.3f}") for o in rung.budget.operators
                ],
                "unsure": rung.budget.unsure,
            }
        )
    return out


def anchor(case: str) -> str:
    """What links of the page call a case."""
    return re.sub(r"[^\w-]+", "-", case)


def _scales(run: RunRecord) -> dict[str, tuple[float, float]]:
    """One scale for all strips of a metric: the same place means the same value."""
    rules = {t.name: t for t in run.thresholds}
    seen: dict[str, list[float]] = {}
    for v in run.verdicts:
        rule = rules.get(v.rule or "")
        ends = (v.low, v.high, *((rule.at_least, rule.at_most) if rule else ()))
        seen.setdefault(v.metric, []).extend(
            [*v.pairs, *v.again, *(e for e in ends if e is not None)]
        )
    return {metric: (min(values), max(values)) for metric, values in seen.items() if values}


def _verdict(run: RunRecord, v: Verdict, scale: tuple[float, float]) -> dict[str, Any]:
    metric = metrics.metric(v.metric)
    rules = {t.name: t for t in run.thresholds}
    rule = rules.get(v.rule or "")
    bounds = [b for b in (rule.at_least, rule.at_most) if b is not None] if rule else []
    absolute = metric.form is Form.ABSOLUTE

    def show(x: float | None) -> str:
        return "" if x is None else si(x, metric.unit) if absolute else f"{x:.3f}"

    cases = (a.case for p in run.plans if p.hash == v.plan for a in p.arms)
    stand_in = any(run.stand_ins(c) for c in cases if c.id == v.case)
    return {
        "status": str(v.status),
        "waived": v.waived,
        "case": v.case,
        "stand_in": stand_in,
        "metric": v.metric if absolute or v.against == "gate" else f"{v.metric} v {v.against}",
        "value": show(v.value),
        "interval": "" if v.low is None else f"[{show(v.low)}, {show(v.high)}]",
        "bound": v.bound,
        "id": anchor(v.case),
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


def _cases(run: RunRecord) -> list[dict[str, Any]]:
    gates = pairs.gates(run)
    rows = [(plan, arm_row(run, plan, arm)) for plan in run.plans for arm in plan.arms]
    first: dict[str, int] = {}
    for i, (_, row) in enumerate(rows):
        first.setdefault(row.case.id, i)
    return [
        {
            **_case(row, gates.get(row.case.hash)),
            "anchor": anchor(row.case.id) if first[row.case.id] == i else "",
            "folders": [
                (x.purpose, x.launch)
                for x in run.launches
                if x.case == row.case.hash and x.plan in ("", plan.hash)
            ],
        }
        for i, (plan, row) in enumerate(rows)
    ]


def _case(row: ArmRow, gate: LaunchRecord | None) -> dict[str, Any]:
    """One arm of the page's table of cases."""
    unchecked = "in every launch" if row.case.script else "not checked"
    failure = obstacles.gate_failure(gate) if gate else unchecked
    expected = row.described.expected if row.described else None
    several = row.case.world_size > 1
    ran = row.launches[0].ranks[0].ran if row.launches else None
    checks = len(gate.ranks[0].checks) if gate and gate.ranks else 0
    what = (ran.module, ran.schedule, ran.compressor, ran.compute_dtype) if ran else ()

    def ms(seconds: float | None) -> str:
        return "n/a" if seconds is None else f"{seconds * 1e3:.1f}"

    return {
        "id": row.case.id,
        "launches": len(row.launches),
        "rate": rate(row.throughput),
        "step": ms(row.step_s),
        "p95": ms(row.p95_s),
        "worst": ms(row.worst_s),
        "sent": si(row.sent_bytes, "B") if row.sent_bytes is not None or several else "",
        "formula": _formula(expected) if expected and several else "",
        "peak": si(row.peak_bytes, "B"),
        "growth": "n/a" if row.growth is None else f"{row.growth / 1e3:+.1f}",
        "work": _work(row),
        "losses": f"{row.alike} of {len(row.launches)}" if row.launches else "",
        "busy": _busy(row.launches),
        "ran": " ".join(filter(None, what)),
        "gate": f"{checks} checks hold" if failure is None else failure,
        "gate_ok": failure is None,
    }


def _work(row: ArmRow) -> str:
    """``12,300 tokens/s, 41.2 TFLOP/s (MFU 0.42), 0.31 J a sample``, as far as it is known."""
    known = (
        ("{} tokens/s", None if row.tokens_per_s is None else rate(row.tokens_per_s)),
        ("{}FLOP/s a rank", None if row.flops is None else si(row.flops)),
        ("MFU {:.2f}", row.mfu),
        ("{:.3g} J a sample", row.energy_j),
    )
    return ", ".join(form.format(value) for form, value in known if value is not None) or "n/a"


def _busy(launches: Sequence[LaunchRecord]) -> str:
    """What host and devices were used, shown and never judged: CPUs a rank, and the allocator."""
    ranks = [r for x in launches for r in x.ranks if r.window_s]
    if not ranks:
        return "n/a"
    out = [f"{sum(r.cpu_s / r.window_s for r in ranks) / len(ranks):.2f} CPU"]
    used = [u for x in launches for g in x.gpus if g.utilization_pct for u in g.utilization_pct]
    if used:
        out.append(f"device {min(used)} to {max(used)}%")
    clocks = [c for x in launches for g in x.gpus for c in g.sm_clock_mhz or ()]
    watts = [w for x in launches for g in x.gpus for w in g.power_w or ()]
    out += [f"{min(clocks)} to {max(clocks)} MHz"] if clocks else []
    out += [f"{min(watts):.0f} to {max(watts):.0f} W"] if watts else []
    if kept := [r.allocator for r in ranks if r.allocator]:
        held = max(a.reserved_bytes - a.allocated_bytes for a in kept)
        retries = sum(a.num_retries for a in kept)
        out.append(f"{si(float(held), 'B')} reserved but free, {retries} allocation retries")
    return ", ".join(out)


def _formula(expected: Expected) -> str:
    """``73.4 kB = (N-1) 8 k (0.02x dense)``"""
    sent = max(expected.sent_bytes)
    ratio = sent / expected.dense_bytes if expected.dense_bytes else 1.0
    dense = "" if ratio == 1.0 else f" ({ratio:.3g}x dense)"
    return f"{si(sent, 'B')} = {expected.formula}{dense}"


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    m = run.machine
    known = peaks(m.gpu)
    peak = ", ".join(f"{tflops:g} TFLOP/s {dtype}" for dtype, tflops in known.items())
    facts = [
        ("cpu", f"{m.num_cores} cores of {m.cpu}, {m.memory_gib} GiB"),
        (
            "gpu",
            f"{m.num_gpus}x {m.gpu}, {m.gpu_memory_gib} GiB, driver {m.driver}"
            if m.gpu
            else "none",
        ),
        ("peak of one device", peak or "unknown: no MFU"),
        ("hardware class", m.hardware_class),
        ("host", f"{m.host}, kernel {m.kernel}"),
    ]
    facts += [(f.check, f.text) for f in run.admission]
    facts += sorted(run.software.items())
    facts += sorted((k, _told(v)) for k, v in fields_of(run.settings).items())
    facts += [(k, v) for k, v in sorted(run.environment.items())]
    return facts


def _told(setting: object) -> str:
    if isinstance(setting, tuple):
        return " ".join(map(str, setting))
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return "not set" if setting in (None, "") else str(setting)
