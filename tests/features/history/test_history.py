"""``history``, ``ingest`` and asv used on the same results, as users call them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.features.history import asv_results
from harness.features.history.asv_page import THEIRS, publish
from harness.features.history.night import keep, nights
from harness.features.history.trends import trends
from harness.interface.cli.main import main
from tests.nights import CASE, SUBJECT, night, noisy

ROOT = Path(__file__).parents[3]
CHROMIUM = shutil.which("chromium")


@pytest.fixture
def slowed(tmp_path: Path) -> Path:
    """Return results of thirty nightly runs that are 5 % slower from the 21st on, when torch
    changed.
    """
    levels = [0.1] * 20 + [0.105] * 10
    for i, figure in enumerate(noisy(levels)):
        torch = "2.14.0" if i >= 20 else "2.13.0"
        steps = {
            CASE: figure.cases[CASE].values["step_time"].value,
            "fsdp/decoder-tiny/weak@4gpu": 0.2,
        }
        keep(night(i, steps, subject={**SUBJECT, "torch": torch}), tmp_path)
    asv_results.write(tmp_path, nights(tmp_path))
    return tmp_path


@pytest.mark.parametrize("columns", [80, 140])
def test_the_terminal_shows_what_changed_when_and_why(
    columns: int, slowed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["history", "--results", str(slowed)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "1 figure has become worse, last on 2026-01-21" in out
    assert re.search(r"\+5\.\d% \[\+4\.\d, \+5\.\d\] since 2026-01-21:\s+torch 2\.13\.0", out)
    assert "fsdp" not in out, "stable figures are only counted"
    assert main(["history", "fsdp", "--results", str(slowed)]) == 0
    assert "stable" in capsys.readouterr().out


def test_history_can_fail_a_pipeline_and_print_json(
    slowed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "--results", str(slowed), "--fail-on", "regressed", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    series = {(s["case"], s["figure"]): s for s in document["series"]}
    slow = series[CASE, "step_time"]
    assert slow["status"] == "regressed" and len(slow["nights"]) == 30
    assert slow["changes"][0]["subject"] == ["torch 2.13.0 -> 2.14.0"]
    assert main(["history", "fsdp", "--results", str(slowed), "--fail-on", "regressed"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["history"], "the history is empty"),
        (["history", "nobody"], "no case with 'nobody' in its name"),
        (["history", "--figure", "speed"], "step_time, step_time_to_control"),
    ],
)
def test_mistakes_are_reported_with_a_fix(
    words: list[str], message: str, slowed: Path, tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    results = tmp_path_factory.mktemp("empty") if words == ["history"] else slowed
    assert main([*words, "--results", str(results)]) == 4
    assert message in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: bash scripts/system-packages.sh")
def test_the_page_opens_without_a_network(slowed: Path) -> None:
    page = slowed / "history.html"
    assert main(["history", "--results", str(slowed), "--html", str(page)]) == 0
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    words += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", page.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 2 and done.stdout.count("<button>") == 5
    document = json.loads(re.search(r'id="history">(.*?)</script>', done.stdout, re.S)[1])  # type: ignore[index]
    assert {s["status"] for s in document} == {"regressed", "stable"}
    assert "http" not in re.sub(r"http://www.w3.org/\S*", "", page.read_text())


def test_asvs_page_contains_the_detected_changes_and_links(slowed: Path) -> None:
    listed = trends(nights(slowed))
    html = publish(slowed, listed, asv_results.write(slowed, nights(slowed)))
    (row,) = json.loads((html / "regressions.json").read_text())["regressions"]
    assert row[0] == f"records.track_step_time('{CASE}')" and (html / row[1]).is_file()
    index = json.loads((html / "index.json").read_text())
    commit = index["revision_to_hash"][str(row[6][0][1])]
    assert index["show_commit_url"] == "history.html#"
    assert {*index["tags"]} >= {"torch-2.13.0", "torch-2.14.0"}
    assert main(["history", "--results", str(slowed), "--html", str(html / "history.html")]) == 0
    assert f'id="{commit[:8]}"' in (html / "history.html").read_text(), (
        "points of asv's page link to this anchor"
    )
    assert (html / THEIRS).is_file()


def test_the_result_of_asvs_detector_is_printed(
    slowed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(slowed, trends(nights(slowed)), asv_results.write(slowed, nights(slowed)))
    main(["history", "--results", str(slowed)])
    assert "asv's own detector agrees" in capsys.readouterr().out
    theirs = slowed / "html" / THEIRS
    theirs.write_text('{"regressions": []}')
    main(["history", "--results", str(slowed)])
    assert "asv's own detector does not see it" in capsys.readouterr().out


@pytest.fixture
def asv_call(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a module in a copy of the parts of this repository that asv
    needs, with the samples of two nightly runs.
    """
    for name in ("asv.conf.json", "benchmarks", "harness", "results/samples"):
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    home = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=home, capture_output=True, text=True,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


SAMPLES = [f"results/samples/{n}" for n in ("ddp-nano", "ddp-nano-again")]


def machine_of_the_samples(folder: Path) -> str:
    (machine,) = {p.name for p in (folder / "results/asv").iterdir() if p.is_dir()} - {"laptop"}
    return machine


def test_asv_reads_what_ingest_wrote(asv_call: Callable[..., str], tmp_path: Path) -> None:
    asv_call("harness", "history", "add", *SAMPLES)
    asv_call("asv", "publish")
    machine = machine_of_the_samples(tmp_path)
    compared = asv_call("asv", "compare", "main~1", "main", "--machine", machine)
    assert "records.track_step_time('ddp/decoder-nano/weak@2cpu')" in compared
    assert "records.track_scaling_loss" in compared and "n/a" not in compared
    (loss,) = (line for line in compared.splitlines() if "track_scaling_loss" in line)
    assert "±" in loss and loss.split("|")[1].strip() == "", (
        "an undecided change must not be marked"
    )
    assert "ddp/decoder-nano/weak@2cpu" in asv_call("asv", "show", "main", "--machine", machine)


@pytest.mark.full
def test_asv_measures_the_core_and_the_records(
    asv_call: Callable[..., str], tmp_path: Path
) -> None:
    asv_call("asv", "machine", "--yes", "--machine", "laptop")
    core = asv_call("asv", "run", "--quick", "--machine", "laptop", "--bench", "core.Core")
    assert "core.Core.time_judge" in core and "failed" not in core
    asv_call("harness", "history", "add", *SAMPLES)
    asv_call("asv", "check")
    machine = machine_of_the_samples(tmp_path)
    asv_call("asv", "machine", "--yes", "--machine", machine)
    asv_call("asv", "run", "--machine", machine, "--bench", "records.track_scaling_loss", "ALL")
    again = asv_call("asv", "compare", "main~1", "main", "--machine", machine)
    assert again.count("records.track_step_time(") == 3, (
        "one environment must not print a line twice"
    )
    assert "n/a" not in again, "each commit must have its measurement"
    root = asv_call("asv", "show", "main~2", "--machine", "laptop")
    assert "core.Core.time_judge" in root, "earlier measurements must be kept"
