"""The history as one self-contained page; asv's points link to its nights."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.base import files
from harness.base.documents import to_doc
from harness.features.history import asv, ledger
from harness.features.history.night import Night
from harness.features.history.report import told
from harness.features.history.report.chart import chart
from harness.features.history.trends import Trend, TrendStatus, changed
from harness.interface.report.templates import templates

#: How a status looks: as the verdict that a reader knows.
_LOOKS = {
    TrendStatus.ERRORED: "ERROR",
    TrendStatus.REGRESSED: "FAIL",
    TrendStatus.UNCONFIRMED: "INCONCLUSIVE",
    TrendStatus.SUSPICIOUS: "INCONCLUSIVE",
    TrendStatus.DRIFTING: "INCONCLUSIVE",
    TrendStatus.IMPROVED: "PASS",
    TrendStatus.STABLE: "RECORDED",
}


def write(path: Path, results: Path, nights: Sequence[Night], trends: Sequence[Trend]) -> None:
    """Write the page whole; nights whose run is still there link to its report."""
    commits = ledger.commits(results / asv.LEDGER)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.writing_to(path.parent):
        files.write({path: render(nights, trends, commits, path.parent, results)})


def render(
    nights: Sequence[Night],
    trends: Sequence[Trend],
    commits: dict[str, str],
    place: Path,
    results: Path,
) -> str:
    """``commits``: run -> commit of the ledger, which nights are linked by; ``place`` is the folder
    that the page will be in.
    """
    moved = [
        trend
        for trend in trends
        if trend.turns or trend.status not in (TrendStatus.STABLE, TrendStatus.INSUFFICIENT)
    ]
    quiet = [trend for trend in trends if trend not in moved]
    data = json.dumps([_data(trend) for trend in trends]).replace("<", "\\u003c")
    return (
        templates(Path(__file__).parent)
        .get_template("history.html.jinja")
        .render(
            headline=told.headline(trends),
            looks=next(iter(_looks(trend) for trend in trends), "RECORDED"),
            counts=told.counts(trends),
            machines=", ".join(sorted({trend.series.machine for trend in trends})),
            first=nights[0].started_at[:10],
            last=nights[-1].started_at[:10],
            count=len(nights),
            moved=[_row(trend) for trend in moved],
            quiet=_by_case(quiet),
            nights=[
                _night(n, b, commits, os.path.relpath(results, place), results)
                for n, b in _newest_first(nights)
            ],
            data=Markup(data),
        )
    )


def _newest_first(nights: Sequence[Night]) -> list[tuple[Night, Night | None]]:
    """Each night with the one before it on the same machine."""
    last: dict[str, Night] = {}
    paired = []
    for night in nights:
        paired.append((night, last.get(night.hardware)))
        last[night.hardware] = night
    return paired[::-1]


def _looks(trend: Trend) -> str:
    return _LOOKS.get(trend.status, "SKIP")


def _row(trend: Trend) -> dict[str, Any]:
    return {
        "status": told.word(trend.status),
        "looks": _looks(trend),
        "case": trend.series.case,
        "machine": trend.series.machine,
        "figure": told.name(trend),
        "newest": told.newest(trend),
        "count": len(trend.series.values),
        "why": trend.why,
        "change": told.change(trend) if trend.last else "",
        "past": told.past(trend),
        "svg": Markup(chart(trend)) if trend.series.values else "",
    }


def _by_case(trends: Sequence[Trend]) -> list[dict[str, Any]]:
    """A case in one line, its figures below."""
    cases: dict[tuple[str, str], list[Trend]] = {}
    for trend in sorted(trends, key=lambda t: t.series.case):
        cases.setdefault((trend.series.machine, trend.series.case), []).append(trend)
    return [
        {"case": case, "machine": machine, "figures": [_row(t) for t in of_case]}
        for (machine, case), of_case in cases.items()
    ]


def _night(
    night: Night, before: Night | None, commits: dict[str, str], way: str, results: Path
) -> dict[str, Any]:
    """A row; ``way`` leads from the page to the results."""
    report = Path(night.folder) / "report.html"
    broken = [case for case, kept in night.cases.items() if kept.error]
    return {
        "anchor": commits.get(night.run, night.run)[:8],
        "run": night.run,
        "when": night.started_at[:16].replace("T", " "),
        "machine": night.hardware,
        "cases": len(night.cases),
        "broken": broken,
        "folder": night.folder,
        "report": f"{way}/{report}" if (results / report).is_file() else "",
        "changed": changed(before, night) if before else [],
        "subject": ", ".join(f"{key} {value}" for key, value in sorted(night.subject.items())),
    }


def _data(trend: Trend) -> dict[str, Any]:
    series = trend.series
    return {
        "machine": series.machine,
        "case": series.case,
        "figure": series.quantity,
        "unit": series.kind.unit,
        "status": str(trend.status),
        "why": trend.why,
        "changes": to_doc(trend.turns),
        "runs": [night.run for night in series.nights],
        "values": [v.value for v in series.values],
    }
