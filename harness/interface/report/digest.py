"""A run in few words for other programs: JSON of a page's length, Markdown for CI, CSV."""

import csv
import io

from harness.analysis.judging import notices
from harness.base.documents import Json
from harness.interface.report.headline import decide, headline
from harness.record import RunRecord
from harness.record.outcome import SEVERITY, exit_status

COLUMNS = (
    "status",
    "case",
    "metric",
    "against",
    "value",
    "low",
    "high",
    "bound",
    "rule",
    "n",
    "reason",
    "reproducible",
)


def rows(run: RunRecord) -> list[dict[str, Json]]:
    """Every verdict, worst first; ``reproducible``: all launches of its case lost alike."""
    ranked = sorted(run.verdicts, key=lambda v: SEVERITY.index(v.status))
    arms = {(p.hash, a.case.hash): (p.hash, a.name) for p in run.plans for a in p.arms}
    alike = notices.alike(run)
    of_cases = {case: alike.get(arm) for case, arm in arms.items()}
    return [
        {name: getattr(v, name) for name in COLUMNS[:-1]}
        | {"reproducible": of_cases.get((v.plan, v.case_hash))}
        for v in ranked
    ]


def document(run: RunRecord) -> dict[str, Json]:
    status = exit_status(
        [v.counts for v in run.verdicts], inconclusive_fails=not run.settings.lenient
    )
    return {
        "run": run.run, "started_at": run.started_at, "complete": run.complete,
        "machine": run.machine.title, "headline": headline(run), "exit": int(status),
        "decide": decide(run), "verdicts": rows(run),
    }  # fmt: skip


def markdown(run: RunRecord) -> list[str]:
    """A heading and a table, as CI systems render them."""
    shown = ("status", "case", "metric", "value", "interval", "bound")
    out = [f"### {headline(run)}", "", f"| {' | '.join(shown)} |", "|" + "---|" * len(shown)]
    for row in rows(run):
        low, high = row["low"], row["high"]
        span = "" if low is None else f"[{low:.4g}, {high:.4g}]"
        value = "" if row["value"] is None else f"{row['value']:.4g}"
        cells = (row["status"], f"`{row['case']}`", row["metric"], value, span, row["bound"])
        out.append("| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |")
    return [*out, "", *(f"- undecided: {line}" for line in decide(run))]


def table(run: RunRecord) -> list[str]:
    """CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(run))
    return text.getvalue().splitlines()
