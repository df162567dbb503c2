"""The stages of a nightly run, each of which can be repeated, and the notification of its
result.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.analysis.reading import load
from harness.base import files, programs
from harness.base.documents import Json, to_doc
from harness.base.errors import Exit, LaunchError, RecordError, ScaleproofError, SpecError
from harness.features.history import asv_results, night as nights_of, trends as judge
from harness.features.history.asv_page import publish
from harness.features.history.ingest import ingest
from harness.features.history.night import Night
from harness.features.history.nightly import state
from harness.features.history.nightly.state import Config, NightState, Occasion, Stage, seconds
from harness.features.history.report import history_page, rows
from harness.features.history.trends import Trend, TrendStatus
from harness.host import admission, machine
from harness.host.admission import Level
from harness.record.outcome import exit_status

#: Statuses of trends that are reported in a notification.
TOLD = (TrendStatus.ERRORED, TrendStatus.REGRESSED, TrendStatus.IMPROVED)
#: Seconds that the user's notification command may take.
NOTIFY_S = 300.0


@dataclass(frozen=True, kw_only=True)
class NewChange:
    """A change that no earlier nightly run has reported."""

    machine: str
    case: str
    figure: str
    status: TrendStatus
    change: str
    since: str
    why: str

    @property
    def key(self) -> str:
        """The text by which a reported change is recognised."""
        return " ".join((self.machine, self.case, self.figure, self.status, self.since))

    @property
    def line(self) -> str:
        """The change in one line, for the terminal."""
        size = f" {self.change} since {self.since}" if self.change else ""
        return f"{rows.word(self.status)}: {self.case}, {self.figure}{size}: {self.why}"


def news(trends: Sequence[Trend], results: Path) -> list[NewChange]:
    """Return the changes among these trends that were not reported before.

    A change counts as reported even if its date has moved by a night or two.
    """
    before = _told(results)
    items = []
    for trend in trends:
        if trend.status not in TOLD:
            continue
        last = trend.last if trend.status is not TrendStatus.ERRORED else None
        item = NewChange(
            machine=trend.series.machine,
            case=trend.series.case,
            figure=rows.name(trend),
            status=trend.status,
            change=rows.change(trend) if last else "",
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
    """Return the keys of the changes that were reported before; empty if their file is damaged."""
    try:
        return set(json.loads((results / "told.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return set()


def remember(results: Path, new: Sequence[NewChange], trends: Sequence[Trend]) -> None:
    """Record which changes were reported.

    A change that has ended is removed, so that it is reported if it occurs again.
    """
    lasting = {
        f"{trend.series.machine} {trend.series.case} {rows.name(trend)} {trend.status} "
        for trend in trends
        if trend.status in TOLD
    }
    old = {key for key in _told(results) if any(key.startswith(start) for start in lasting)}
    keys = sorted(old | {item.key for item in new})
    with files.writing_to(results):
        files.write({results / "told.json": json.dumps(keys, indent=1) + "\n"})


def notice_document(
    night: str, exit_status: int, new: Sequence[NewChange], trends: Sequence[Trend], page: Path
) -> dict[str, Json]:
    """Return the document that the user's command reads from stdin."""
    leapt = [
        trend
        for trend in trends
        if trend.status in (TrendStatus.SUSPICIOUS, TrendStatus.UNCONFIRMED)
    ]
    return {
        "night": night,
        "exit": exit_status,
        "headline": rows.headline(trends),
        "counts": {
            str(status): sum(trend.status is status for trend in trends) for status in TrendStatus
        },
        "news": [to_doc(item) for item in new],
        "suspicious": [f"{trend.series.case}, {rows.name(trend)}: {trend.why}" for trend in leapt],
        "page": str(page.absolute()),
    }


def notify(command: str, told_: dict[str, Json]) -> None:
    """Run the user's command with the document on stdin; raise LaunchError if it fails."""
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
            fix="scaleproof history nightly: it repeats the notification without measuring again",
        )


#: Seconds between two checks of whether a busy host has become idle.
LOOK_S = 20.0
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class StageEnded:
    """The result of a nightly run that has ended, now or before this call."""

    tonight: NightState
    nights: Sequence[Night]
    trends: Sequence[Trend]
    document: dict[str, Json]


class NightlyRun:
    """One call of ``history nightly``, which continues an interrupted nightly run or begins one."""

    def __init__(self, config: Config, say: Say) -> None:
        self.config = config
        self.results = config.folder
        self.say = say
        self._failed: ScaleproofError | None = None
        self._new: Sequence[NewChange] = ()

    def make(self, *, again: bool) -> StageEnded:
        """Run the remaining stages of the nightly run and return its result.

        ``again`` begins a new nightly run even if the last one has just ended.
        """
        with state.alone(self.results):
            tonight = self._which(again)
            steps = {
                Stage.MEASURE: self._measure,
                Stage.KEEP: self._keep,
                Stage.AGAIN: self._again,
                Stage.PUBLISH: self._publish,
                Stage.TELL: self._tell,
                Stage.PRUNE: self._prune,
            }
            while tonight.stage is not Stage.DONE:
                tonight = steps[tonight.stage](tonight)
            nights, trends = self._judged()
            if self._failed is not None:
                raise self._failed
        document = notice_document(tonight.name, tonight.exit, self._new, trends, self._page)
        return StageEnded(tonight=tonight, nights=nights, trends=trends, document=document)

    @property
    def _page(self) -> Path:
        """The path of the history page."""
        return self.results / "history.html"

    def _which(self, again: bool) -> NightState:
        """Return the nightly run to continue, the last one if it ended recently, or a new one."""
        last = state.known(self.results)
        if last is None or (last.stage is Stage.DONE and again):
            return self._begun()
        if last.stage is not Stage.DONE:
            self.say(f"continuing nightly run {last.name}, which was interrupted: {last.stage}")
            return last
        if last.age_s() < seconds(self.config.again_after):
            hours = last.age_s() / 3600
            self.say(f"the last nightly run ended {hours:.1f} h ago (--again measures once more)")
            return last
        return self._begun()

    def _begun(self) -> NightState:
        """Begin a new nightly run; raise SpecError if the suites have uncommitted changes."""
        suite = machine.suite(Path.cwd()).get("suite", "")
        if suite.endswith("-dirty"):
            raise SpecError(
                "the suites have uncommitted changes: the run could not be added to the history",
                where=str(Path.cwd()),
                expected="suites without uncommitted changes",
                fix="git stash, or git commit",
            )
        return state.note(self.results, state.begin())

    def _judged(self) -> tuple[list[Night], list[Trend]]:
        """Return all nights of the history and their trends."""
        nights = nights_of.nights(self.results)
        return nights, judge.trends(nights)

    def _measure(self, tonight: NightState) -> NightState:
        """Run the suites through pytest, or resume a run that was interrupted."""
        folder = tonight.run(self.results)
        if folder is not None and not load(folder).complete:
            self.say(f"resuming {folder}")
            words = [sys.executable, *programs.MODULE, "harness", "run", "--resume", str(folder)]
            status = subprocess.run(words, check=False).returncode
        elif folder is None:
            self._calm()
            status = self._pytest(tonight.nonce, ())
        else:  # interrupted just after the run had ended
            status = int(exit_status([verdict.counts for verdict in load(folder).verdicts]))
        folder = tonight.run(self.results)
        if folder is not None and not load(folder).complete:
            raise LaunchError(
                f"the measurement was interrupted (pytest: status {status})",
                where=str(folder),
                expected="pytest completes the run",
                fix="scaleproof history nightly: it resumes the run",
            )
        return state.at(self.results, tonight, Stage.KEEP, suites=status)

    def _calm(self) -> None:
        """Wait until the host is idle.

        A host that stays busy is measured nevertheless, and the verdicts show it.
        """
        until = time.monotonic() + seconds(self.config.wait)
        while bad := [finding for finding in admission.examine() if finding.level is Level.BAD]:
            if time.monotonic() > until:
                self.say(f"the host stays busy: {bad[0].text}; measured nevertheless")
                return
            time.sleep(LOOK_S)

    def _pytest(self, nonce: str, more: Sequence[str]) -> int:
        """Run the suites with pytest and return its exit status. ``more`` are additional
        arguments.
        """
        config = self.config
        words = [sys.executable, "-m", "pytest", *config.suites, *config.arguments, *more]
        words += ["--scaling-results", config.results, "--scaling-nonce", nonce]
        words += ["--scaling-control", config.control] if config.control else []
        return subprocess.run(words, check=False).returncode

    def _keep(self, tonight: NightState) -> NightState:
        """Add the run to the history; if that fails, end the nightly run with the error."""
        folder = tonight.run(self.results)
        if folder is None:
            state.forget(self.results)  # nothing was measured, so the next call begins anew
            raise LaunchError(
                f"pytest ended with status {tonight.suites} and left no run",
                where="suites",
                expected="pytest leaves a run with timed launches",
                fix=f"pytest {' '.join(self.config.suites)}",
            )
        try:
            ingest([folder], self.results)
        except RecordError as error:
            self._failed = error
            return self._over(tonight, Exit.ERROR)
        return state.at(self.results, tonight, Stage.AGAIN)

    def _again(self, tonight: NightState) -> NightState:
        """Measure suspicious cases once more, because a single measurement decides nothing."""
        folder = tonight.run(self.results)
        leapt = self._leapt(folder) if folder is not None and self.config.rerun else []
        if leapt and tonight.run(self.results, again=True) is None:
            self.say(f"measuring suspicious cases again: {', '.join(leapt)}")
            self._pytest(f"{tonight.nonce}-again", ["-k", " or ".join(leapt)])
        if (second := tonight.run(self.results, again=True)) is not None:
            try:
                ingest([second], self.results)
            except RecordError as error:
                self.say(f"the second measurement is not added to the history: {error.what}")
        return state.at(self.results, tonight, Stage.PUBLISH)

    def _leapt(self, folder: Path) -> list[str]:
        """Return pytest's names of the cases that are suspicious in this run."""
        run = load(folder)
        cases = {arm.case.id: arm.case.pytest_id for plan in run.plans for arm in plan.arms}
        leaps = [
            cases[trend.series.case]
            for trend in self._judged()[1]
            if trend.status is TrendStatus.SUSPICIOUS
            and trend.series.case in cases
            and trend.series.nights
            and trend.series.nights[-1].run == run.run
        ]
        return list(dict.fromkeys(leaps))

    def _publish(self, tonight: NightState) -> NightState:
        """Write the history page, and asv's page if the configuration requests it."""
        nights, trends = self._judged()
        history_page.write(self._page, self.results, nights, trends)
        if self.config.publish:
            with nights_of.locked(self.results):
                commits = asv_results.write(self.results, nights)
            try:
                html = publish(self.results, trends, commits)
                history_page.write(html / "history.html", self.results, nights, trends)
            except RecordError as error:
                self.say(str(error))
        return state.at(self.results, tonight, Stage.TELL)

    def _tell(self, tonight: NightState) -> NightState:
        """Run the user's command once if there is something to report."""
        nights, trends = self._judged()
        new = self._new = news(trends, self.results)
        ended = self._exit(tonight, new, self._kept(tonight, nights))
        if new:
            self.say(f"{len(new)} new:")
        for item in new:
            self.say(f"  {item.line}")
        worth = new or tonight.suites or self.config.notify_when is Occasion.ALWAYS
        if self.config.notify and worth:
            document = notice_document(tonight.name, ended, new, trends, self._page)
            notify(self.config.notify, document)
        remember(self.results, new, trends)
        return state.at(self.results, tonight, Stage.PRUNE, exit=int(ended))

    def _kept(self, tonight: NightState, nights: Sequence[Night]) -> Night | None:
        """Return the entry of this nightly run in the history, or None."""
        folder = tonight.run(self.results)
        name = "" if folder is None else load(folder).run
        return next((night for night in nights if night.run == name), None)

    def _exit(self, tonight: NightState, new: Sequence[NewChange], kept: Night | None) -> Exit:
        """Return the worse of pytest's exit status and the status of the history.

        Suites without thresholds have no verdicts, but the history still judges their nightly runs.
        A case without values is an error in every nightly run, and not only in the first one that
        reports it.
        """
        statuses = {item.status for item in new}
        cases = [] if kept is None else list(kept.cases.values())
        if tonight.suites == Exit.ERROR or any(case.error for case in cases):
            return Exit.ERROR
        if TrendStatus.REGRESSED in statuses or tonight.suites == Exit.FAILED:
            return Exit.FAILED
        if not any(case.values for case in cases):
            return Exit.NOTHING_JUDGED
        if tonight.suites == Exit.NOTHING_JUDGED:
            return Exit.PASSED
        known = {int(e) for e in Exit}
        return Exit(tonight.suites) if tonight.suites in known else Exit.ERROR

    def _prune(self, tonight: NightState) -> NightState:
        """Remove the records of old nightly runs.

        Their entries in the history stay, because each takes only a few kB.
        """
        kept_runs = {night.run for night in nights_of.nights(self.results)}
        before = time.time() - seconds(self.config.keep)
        for path in (self.results / "runs").glob("*/*/record.json"):
            if path.parent.name in kept_runs and path.stat().st_mtime < before:
                if state.of_a_night(path):
                    shutil.rmtree(path.parent)
        return self._over(tonight, Exit(tonight.exit))

    def _over(self, tonight: NightState, status: Exit) -> NightState:
        """Mark the nightly run as ended with this exit status."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return state.at(self.results, tonight, Stage.DONE, exit=int(status), ended_at=now)
