"""The command ``report timeline``, on runs and on traces that other tools recorded."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from harness.interface.cli.main import main

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "analysis" / "timeline" / "recorded"
SAMPLE = ROOT / "tests" / "golden" / "samples" / "ddp-nano"


def test_a_run_shows_every_rank_of_its_world_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "timeline", str(SAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "ddp/decoder-nano/weak@2cpu: 2 ranks, 8 steps of" in out
    assert "clocks within" in out and "load balance" in out
    assert max(map(len, out.splitlines())) <= 100
    text = " ".join(out.split())  # Figures that a report refuses must be marked as refused.
    assert "refused profiled steps take 1." in text and "attributes nothing" in text


def test_traces_of_other_tools_are_merged_with_their_ranges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of traces does not matter, and the JSON document contains what is printed."""
    paths = [str(RECORDED / f"fsdp-rank{r}.json.gz") for r in (1, 0)]
    assert main(["report", "timeline", *paths, "--merge", str(tmp_path), "--ranges"]) == 0
    out = capsys.readouterr().out
    assert "FSDP::all_gather" in out and "https://ui.perfetto.dev" in out
    (merged,) = tmp_path.iterdir()
    assert main(["report", "timeline", *paths, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["windows"]
    assert [r["rank"] for r in document["budget"]["ranks"]] == [0, 1]
    assert main(["report", "timeline", str(merged)]) == 0, (
        "the merged file must be readable as a trace"
    )
    assert "2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "says", "fix"),
    [
        (lambda d: [str(d / "no.json")], "No such file", "scaleproof report timeline"),
        (lambda d: [str(d)], "no record.json", "ls results"),
        (lambda d: [str(ROOT / "tests/golden/record-v1")], "no profiled launch", "scaleproof run"),
        (
            lambda d: [str(RECORDED / "ddp-rank0.json.gz")] * 2,
            "ranks [0, 0]",
            "scaleproof report timeline",
        ),
    ],
)
def test_input_without_a_timeline_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: object, says: str, fix: str
) -> None:
    assert main(["report", "timeline", *make(tmp_path)]) == 4  # type: ignore[operator]
    error = capsys.readouterr().err
    assert says in error and fix in error and "Traceback" not in error


def test_nsys_wraps_the_command_or_is_reported_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", "ddp/decoder-nano/weak", "--nsys"]) == 4
    assert "there is no nsys on the PATH" in capsys.readouterr().err
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    calls: list[list[str]] = []

    def execv(path: str, command: list[str]) -> None:
        calls.append([path, *command])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "execv", execv)
    results = tmp_path / "results"
    main(["run", "ddp/decoder-nano/weak", "--cpus", "2", "--nsys", "--results", str(results)])
    (call,) = calls
    assert call[0] == shutil.which("nsys") and "--trace-fork-before-exec=true" in call
    assert call[-6:] == ["run", "ddp/decoder-nano/weak", "--cpus", "2", "--results", str(results)]


def test_a_record_without_traces_is_reported_with_a_command(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "timeline", str(sample), "--merge", str(tmp_path)]) == 4
    assert f"try       scaleproof report timeline {sample}" in capsys.readouterr().err
