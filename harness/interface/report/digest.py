"""Summarize a run for other programs: JSON, Markdown for CI systems, CSV, a proposal."""

import shlex

from harness.analysis.judging import notices
from harness.analysis.ladder import ladder_rows
from harness.analysis.results import document as document_of, ranked, required, results, tally
from harness.base.documents import Json, fields_of
from harness.base.formatting import rate, si
from harness.interface.report import figures, sections
from harness.interface.report.headline import decide, headline, why_open
from harness.interface.report.tabled import harmless, written
from harness.record import Purpose, RunRecord, Status


def rows(run: RunRecord) -> list[dict[str, Json]]:
    """Return every result as a flat row, worst first.

    ``reproducible`` says whether all launches of its case had identical losses.
    """
    arms = {(plan.hash, a.case.hash): (plan.hash, a.name) for plan in run.plans for a in plan.arms}
    alike = notices.alike(run)
    of_cases = {case: alike.get(arm) for case, arm in arms.items()}
    return [
        document_of(result) | {"reproducible": of_cases.get((result.plan, result.case_hash))}
        for result in ranked(run)
    ]


def document(run: RunRecord) -> dict[str, Json]:
    return {
        "run": run.run,
        "started_at": run.started_at,
        "complete": run.complete,
        "machine": run.machine.title,
        "headline": headline(run),
        "requirements": fields_of(tally(run)),
        "why": why_open(run),
        "exit": int(run.exit_status),
        "decide": decide(run),
        "verdicts": rows(run),
        "remarks": sections.remarks(run),
    }


def markdown(run: RunRecord) -> list[str]:
    """Return a heading, the causes and a table in Markdown, with a mark on simulated results."""
    heading, _, quoted = headline(run).partition(". ")
    shown = ("status", "case", "metric", "value", "interval", "bound")
    lines = [f"### {heading}", "", *([quoted, ""] if quoted else [])]
    lines += [f"- {harmless(cause)}" for cause in why_open(run)]
    lines += ["", f"| {' | '.join(shown)} |", "|" + "---|" * len(shown)]
    for result in ranked(run):
        case = f"{result.case} (simulated)" if result.stand_in else result.case
        cells = (
            result.status,
            case,
            figures.metric(result),
            figures.value(result, ".4g"),
            figures.interval(result, ".4g"),
            result.bound,
        )
        lines.append("| " + " | ".join(harmless(str(cell)) for cell in cells) + " |")
    return [*lines, "", *(f"- inconclusive: {line}" for line in decide(run))]


def proposal(run: RunRecord, plot: str) -> list[str]:
    """Return a plot, a table and a paragraph on method, for an application for computing time."""
    lines = ["# Scaling", "", *_caveat(run), f"![speedup]({plot})", ""]
    for plan in run.plans:
        if len(rows_ := ladder_rows(run, plan)) < 1 or run.stand_ins(plan.arms[0].case):
            continue
        mode = plan.arms[0].case.mode
        lines += [
            f"**{plan.name}**, {mode} scaling",
            "",
            "| ranks | samples/s | step | speedup | parallel efficiency [95 %] |",
            "|---|---|---|---|---|",
        ]
        for rung in rows_:
            point = rung.point
            if point.efficiency is None:
                continue
            span = (
                ""
                if point.efficiency_low is None
                else (f" [{point.efficiency_low:.3f}, {point.efficiency_high:.3f}]")
            )
            step = "" if rung.row.step_s is None else si(rung.row.step_s, "s")
            lines.append(
                f"| {rung.row.case.world} | {rate(rung.row.throughput)} | {step} |"
                f" {point.speedup:.2f} | {point.efficiency:.3f}{span} |"
            )
        lines.append("")
    return [*lines, *_method(run)]


def _caveat(run: RunRecord) -> list[str]:
    """Return a caveat if a threshold is not met or inconclusive, or if a result has a caveat."""
    judged = required(run)
    doubtful = [result for result in results(run) if result.doubt]
    if all(result.counts is Status.PASS for result in judged) and not doubtful:
        return []
    open_ = [f"{tally(run)}."] if judged else []
    noisy = [f"{len(doubtful)} results have a caveat: {doubtful[0].doubt}."]
    return [f"**Not settled.** {' '.join([*open_, *(noisy if doubtful else [])])}", ""]


def _method(run: RunRecord) -> list[str]:
    """Return a paragraph about the method that can be quoted."""
    timed = [launch for launch in run.launches if launch.purpose is Purpose.TIMED and launch.usable]
    steps = sum(launch.steps.count for launch in timed if launch.steps is not None)
    machine, software = run.machine, run.software
    scripts = any(arm.case.script for plan in run.plans for arm in plan.arms)
    checked = (
        "It was checked that all ranks formed one world, started and ended with identical"
        " parameters, trained on different samples and exchanged gradients once per step."
        if scripts
        else "The losses of every launch were compared with those of a training on one device."
    )
    return [
        "## Method",
        "",
        f"Measured on {run.started_at[:10]} on {machine.title} with torch {software.get('torch')}"
        f" ({len(timed)} launches of fresh processes, {steps} steps after warm-up). The world sizes"
        " and their baseline were launched alternately in blocks of random order, so changes of the"
        " machine affect both equally. The launch is the unit of replication. Each end of an"
        " interval is a 95% confidence limit, which stays valid however often the data are"
        " inspected. Throughput is the number of samples that reached the model, divided by the"
        f" wall time of the slowest rank. {checked}",
        "",
        f"Reproduce: `{shlex.join(run.settings.argv)}`",
    ]


def table(run: RunRecord) -> list[str]:
    """Return the results as CSV lines with a header."""
    return written(rows(run))
