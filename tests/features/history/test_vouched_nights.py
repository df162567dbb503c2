"""``history`` fails if a nightly run does not follow from the chain of its run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import Exit
from harness.features.history.ingest import ingest
from harness.interface.cli.main import main
from harness.record.chain import FILE

SAMPLE = Path(__file__).parents[2] / "golden" / "samples" / "ddp-nano"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return results that contain a nightly run and its run."""
    page = shutil.ignore_patterns("*report*")
    run = shutil.copytree(SAMPLE, tmp_path / "results" / "runs" / "ddp-nano", ignore=page)
    ingest([run], tmp_path / "results")
    return tmp_path / "results"


def unchained(results: Path) -> None:
    (results / "runs" / "ddp-nano" / FILE).unlink()


def edited_chain(results: Path) -> None:
    path = results / "runs" / "ddp-nano" / FILE
    path.write_text(path.read_text().replace('"steps":', '"stops":', 1))


def faster_night(results: Path) -> None:
    (path,) = (results / "nights").glob("*.json")
    doc = json.loads(path.read_text())
    for case in doc["cases"].values():
        case["values"]["step_time"]["value"] *= 0.5
    path.write_text(json.dumps(doc))


@pytest.mark.parametrize("forge", [unchained, edited_chain, faster_night])
def test_a_forged_nightly_run_fails(
    results: Path, forge: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "--results", str(results)]) == Exit.PASSED
    assert "NOT VERIFIED" not in capsys.readouterr().out
    forge(results)
    assert main(["history", "--results", str(results)]) == Exit.FAILED
    assert "NOT VERIFIED" in capsys.readouterr().out


def test_nightly_runs_without_their_run_are_counted(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(results / "runs")
    assert main(["history", "--results", str(results)]) == Exit.PASSED
    assert "1 of 1 nights cannot be verified" in capsys.readouterr().out
