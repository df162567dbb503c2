"""The notice of a night: new changes, in a document for programs and lines for people."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base import files
from harness.base.documents import Json, to_doc
from harness.base.errors import LaunchError
from harness.features.history.report import told
from harness.features.history.trends import Trend, TrendStatus

#: What is worth a message.
TOLD = (TrendStatus.ERRORED, TrendStatus.REGRESSED, TrendStatus.IMPROVED)
#: Seconds that the user's command may take.
NOTIFY_S = 300.0


@dataclass(frozen=True, kw_only=True)
class NewChange:
    """A change that no night before has told of."""

    machine: str
    case: str
    figure: str
    status: TrendStatus
    change: str
    since: str
    why: str

    @property
    def key(self) -> str:
        return " ".join((self.machine, self.case, self.figure, self.status, self.since))

    @property
    def line(self) -> str:
        size = f" {self.change} since {self.since}" if self.change else ""
        return f"{told.word(self.status)}: {self.case}, {self.figure}{size}: {self.why}"


def news(trends: Sequence[Trend], results: Path) -> list[NewChange]:
    """Changes among these that are new; one whose date moved by a night or two is the same one."""
    before = _told(results)
    items = []
    for trend in trends:
        if trend.status not in TOLD:
            continue
        last = trend.last if trend.status is not TrendStatus.ERRORED else None
        item = NewChange(
            machine=trend.series.machine,
            case=trend.series.case,
            figure=told.name(trend),
            status=trend.status,
            change=told.change(trend) if last else "",
            since=last.date if last else "",
            why=trend.why,
        )
        near = {night.run for night in trend.series.nights}
        if last is not None:
            near = {
                night.started_at[:10] for night in trend.series.nights[max(0, last.index - 2) :][:5]
            }
        keys = {item.key, *(item.key.replace(item.since, day) for day in near if item.since)}
        if not keys & before:
            items.append(item)
    return items


def _told(results: Path) -> set[str]:
    try:
        return set(json.loads((results / "told.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return set()


def remember(results: Path, new: Sequence[NewChange], trends: Sequence[Trend]) -> None:
    """Note what was told. What has ended may be told again when it comes again."""
    lasting = {
        f"{trend.series.machine} {trend.series.case} {told.name(trend)} {trend.status} "
        for trend in trends
        if trend.status in TOLD
    }
    old = {key for key in _told(results) if any(key.startswith(start) for start in lasting)}
    keys = sorted(old | {item.key for item in new})
    with files.writing_to(results):
        files.write({results / "told.json": json.dumps(keys, indent=1) + "\n"})


def document(
    night: str, exit_status: int, new: Sequence[NewChange], trends: Sequence[Trend], page: Path
) -> dict[str, Json]:
    """The document that the user's command reads from stdin."""
    leapt = [
        trend
        for trend in trends
        if trend.status in (TrendStatus.SUSPICIOUS, TrendStatus.UNCONFIRMED)
    ]
    return {
        "night": night,
        "exit": exit_status,
        "headline": told.headline(trends),
        "counts": {
            str(status): sum(trend.status is status for trend in trends) for status in TrendStatus
        },
        "news": [to_doc(item) for item in new],
        "suspicious": [f"{trend.series.case}, {told.name(trend)}: {trend.why}" for trend in leapt],
        "page": str(page.absolute()),
    }


def notify(command: str, told_: dict[str, Json]) -> None:
    """Run the user's command with the document on stdin; LaunchError if it fails."""
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(told_, indent=1),
            text=True,
            timeout=NOTIFY_S,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        message = f"exit status {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}"
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
        message = f"still running after {NOTIFY_S:.0f} s"
    if failed:
        raise LaunchError(
            f"notify failed, {message}",
            where=command,
            expected="a command that reads JSON on stdin",
            fix="scaleproof nightly: it tells again, and measures nothing twice",
        )
