"""Nightly runs as cron starts them: measuring, storing, notifying, interrupts, concurrent starts,
pruning.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import Exit
from harness.features.history import asv_results
from harness.features.history.ingest import ingest
from harness.features.history.night import keep, nights
from harness.features.history.nightly import stages
from harness.features.history.nightly.stages import NightlyRun
from harness.features.history.nightly.state import Config, NightState
from harness.features.history.trends import TrendStatus, trends
from harness.record.store import load
from tests.editing import rechain
from tests.nights import SUBJECT, night
from tests.waiting import until

ROOT = Path(__file__).parents[3]
SUITE = """
from harness import Protocol, ladder, scaling
FAST = Protocol(steps=14, cut=2, min_blocks=2, max_blocks=2)
def weak(site):
    return [ladder(site.case("ddp/versioned-small", "weak"), (1,), baselines=(), metrics=("step_s",), protocol=FAST)]
@scaling(weak)
def test_mine(verdict):
    pass
"""
CONFIG = """
suites = ["test_mine.py"]
arguments = ["--cpus", "1", "--scaling-path", "mine", "--scaling-no-timeline", "--scaling-no-fabric"]
notify = "cat >> told.jsonl && echo ',' >> told.jsonl"
publish = false
wait = "0s"
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    """Return a repository with one suite, a model that has versions, and a configuration."""
    (tmp_path / "mine").mkdir()
    shutil.copy(ROOT / "tests/plants/versioned.py", tmp_path / "mine")
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(SUITE))
    (tmp_path / "nightly.toml").write_text(textwrap.dedent(CONFIG))
    (tmp_path / ".gitignore").write_text("results/\n__pycache__/\ntold.jsonl\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "--short=12", "HEAD")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "harness", "history", "nightly", *words]


def call(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip


def told(folder: Path) -> list[dict[str, object]]:
    path = folder / "told.jsonl"
    return json.loads(f"[{path.read_text().rstrip().rstrip(',')}]") if path.is_file() else []


def state(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "results/nightly.json").read_text()))


@pytest.mark.full
def test_a_nightly_run_is_measured_once_and_resumes_after_a_kill(suites: Path) -> None:
    first = call(suites)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "too few runs to judge any of 3 figures" in first.stdout
    again = call(suites)
    assert again.returncode == 0 and "the last nightly run ended" in again.stderr
    assert len(nights(suites / "results")) == 1, "the second call must not add a nightly run"
    (kept,) = nights(suites / "results")
    assert kept.subject["suite"] == git(suites, "rev-parse", "--short=12", "HEAD")

    # A killed measurement is continued by the next call, with the same run.
    running = subprocess.Popen(
        command("--again"), cwd=suites, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    runs = suites / "results/runs"
    new = until(lambda: [p for p in runs.glob("*/*/record.json") if p.parent.name != kept.run])
    assert new, "the second nightly run must have started"
    second = call(suites)
    assert second.returncode == 5 and "another nightly run is in progress here" in second.stderr
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not load(new[0].parent).complete, "the kill came too late, after the run had completed"
    resumed = call(suites)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "continuing nightly run" in resumed.stderr and "resuming" in resumed.stderr
    assert [n.run for n in nights(suites / "results")] == [kept.run, new[0].parent.name]
    assert state(suites)["stage"] == "done"


@pytest.mark.few(2)
@pytest.mark.parametrize("stage", ["keep", "again", "publish", "tell", "prune"])
def test_an_interrupt_before_any_stage_repeats_no_measurement(stage: str, suites: Path) -> None:
    """The nightly run uses a shipped sample as its run, so it measures nothing."""
    results = suites / "results"
    sample = ROOT / "tests/golden/samples/ddp-nano"
    run = load(sample)
    folder = results / "runs" / run.machine.hardware_class / run.run
    shutil.copytree(sample, folder)
    record = json.loads((folder / "record.json").read_text())
    record["settings"]["nonce"] = "night-x"
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "record.sha256").unlink(missing_ok=True)
    rechain(folder)
    os.utime(folder / "record.json", (0, time.time() - 40 * 86400))
    begun = {"nonce": "night-x", "begun_at": run.started_at, "stage": stage, "suites": 0}
    (results / "nightly.json").write_text(json.dumps(begun))
    if stage != "keep":
        ingest([folder], results)
    done = call(suites)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(nights(results)) == 1 and state(suites)["stage"] == "done"
    assert not folder.exists(), "runs older than 30 days must be pruned"


@pytest.mark.full
def test_a_killed_measurement_is_resumed_by_the_next_call(suites: Path) -> None:
    """The kernel does this if memory is short: only the measurement is killed, not the nightly
    program.
    """
    running = subprocess.Popen(
        command(), cwd=suites, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert until(lambda: list((suites / "results/runs").glob("*/*/record.json")))
    killed = subprocess.run(["pkill", "-KILL", "-P", str(running.pid)], check=False)
    _, output = running.communicate(timeout=120)
    assert killed.returncode == 0 and running.returncode == 11, output
    assert "was interrupted" in output and "it resumes the run" in output
    assert call(suites).returncode == 0 and len(nights(suites / "results")) == 1


def test_uncommitted_suites_are_refused_before_anything_is_measured(suites: Path) -> None:
    (suites / "test_mine.py").write_text(SUITE + "# changed\n")
    done = call(suites)
    assert done.returncode == 4 and "uncommitted changes" in done.stderr
    assert not (suites / "results/runs").exists()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('suite = ["a"]', "did you mean 'suites'?"),
        ('keep = "a month"', "not a duration"),
        ('rerun = "yes"', "expected a bool"),
        ('notify_when = "sometimes"', "one of news, always"),
    ],
)
def test_mistakes_in_the_configuration_are_reported(text: str, message: str, suites: Path) -> None:
    (suites / "nightly.toml").write_text(text)
    done = call(suites)
    assert done.returncode == 4 and message in done.stderr, done.stderr


@pytest.mark.full
def test_a_failing_suite_ends_the_nightly_run_with_an_error(suites: Path) -> None:
    (suites / "test_mine.py").write_text("import nothing_like_that\n")
    commit(suites)
    done = call(suites)
    assert done.returncode == 11 and "left no run" in done.stderr
    (suites / "test_mine.py").write_text(textwrap.dedent(SUITE))
    commit(suites)
    assert call(suites).returncode == 0, (
        "the failed nightly run measured nothing, so it must be repeated"
    )


def test_a_change_is_reported_once(tmp_path: Path) -> None:
    def found(days: int) -> list[stages.NewChange]:
        for i in range(days):
            slow = 0.11 if i >= 20 else 0.1
            subject = {**SUBJECT, "torch": "3" if i >= 20 else "2"}
            keep(night(i, {"case": slow + (i % 3) * 1e-4}, subject=subject), tmp_path)
        judged = trends(nights(tmp_path))
        new = stages.news(judged, tmp_path)
        stages.remember(tmp_path, new, judged)
        return new

    assert found(20) == []
    (change,) = found(28)
    assert change.status is TrendStatus.REGRESSED and "torch 2 -> 3" in change.line
    assert found(28) == [] and found(29) == [], "an old change must not be reported again"


@pytest.mark.parametrize(
    ("error", "steps", "suites", "ended"),
    [
        ("slot too short: 16 deadlines missed", {"case": 0.1}, 5, Exit.ERROR),
        ("", {"case": 0.1}, 5, Exit.PASSED),
        ("", {}, 5, Exit.NOTHING_JUDGED),
        ("", {}, 0, Exit.NOTHING_JUDGED),
        ("", {"case": 0.1}, 10, Exit.INCONCLUSIVE),
    ],
)
def test_a_case_without_a_figure_is_an_error_every_night(
    error: str, steps: dict[str, float], suites: int, ended: Exit, tmp_path: Path
) -> None:
    """A case that fails in several nightly runs must not become a success after the first one."""
    rounds = NightlyRun(Config(results=str(tmp_path)), print)
    tonight = NightState(nonce="night-x", begun_at="2026-01-31T02:00:00+00:00", suites=suites)
    assert rounds._exit(tonight, [], night(3, steps, error=error)) is ended


def test_a_failing_notify_command_is_reported_and_repeated(suites: Path) -> None:
    results = suites / "results"
    for i in range(30):
        keep(night(i, {"case": (0.12 if i >= 20 else 0.1) + (i % 3) * 1e-4}), results)
    asv_results.write(results, nights(results))
    begun = {"nonce": "night-x", "begun_at": "2026-01-31T02:00:00+00:00", "stage": "tell"}
    (results / "nightly.json").write_text(json.dumps({**begun, "suites": 0}))
    config = (suites / "nightly.toml").read_text()
    (suites / "nightly.toml").write_text(config.replace('notify = "cat', 'notify = "exit 3; cat'))
    done = call(suites)
    assert done.returncode == 11 and "notify failed, exit status 3" in done.stderr
    (suites / "nightly.toml").write_text(config)
    done = call(suites)
    assert done.returncode == 1, "a regression must set the exit status"
    (document,) = told(suites)
    assert [n["case"] for n in document["news"]] == ["case"] and document["exit"] == 1  # type: ignore[attr-defined, index]


@pytest.mark.full
def test_twenty_real_nightly_runs_find_an_injected_slowdown(suites: Path) -> None:
    model = suites / "mine/versioned.py"
    commits = []
    for number in range(20):
        if number == 12:
            model.write_text(model.read_text().replace("step_ms=20.0", "step_ms=21.0"))
            commits += [git(suites, "rev-parse", "--short=12", "HEAD"), commit(suites)]
        done = call(suites, "--again")
        assert done.returncode in (0, 1), done.stdout + done.stderr
    kept = nights(suites / "results")
    today = next(t for t in trends(kept) if t.series.quantity == "step_time")
    assert today.status is TrendStatus.UNCONFIRMED and "on another day" in today.why
    assert not [n for d in told(suites) for n in d["news"]], (
        "an unconfirmed change must not be notified"
    )  # type: ignore[attr-defined]
    by_day = [
        replace(night, started_at=f"2026-01-{number + 1:02}T02:00:00+00:00")
        for number, night in enumerate(kept)
    ]
    trend = next(t for t in trends(by_day) if t.series.quantity == "step_time")
    assert trend.status is TrendStatus.REGRESSED and trend.last is not None
    # A leap in any figure is measured once more, so there may be more nights than calls.
    slow = next(night for night in kept if night.subject["suite"] == commits[1])
    assert trend.last.run == slow.run and trend.last.size == pytest.approx(0.05, abs=0.002)
    assert trend.why.startswith(f"suite {commits[0]} -> {commits[1]}")
