"""Figures that do not follow from their samples give no success, whichever verb reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.base.errors import Exit
from harness.interface.cli.main import main
from tests.editing import rechain, timed


@pytest.fixture(params=["complete", "incomplete"])
def forged(request: pytest.FixtureRequest, sample: Path, tmp_path: Path) -> Path:
    """Two ranks four times as fast, with a chain that says so; its verdicts are judged anew."""
    page = shutil.ignore_patterns("*report*")
    folder = Path(shutil.copytree(sample, tmp_path / "run", ignore=page))
    doc = json.loads((folder / "record.json").read_text())
    for launch in timed(doc, "@2"):
        for rank in launch["ranks"]:
            rank["window_s"] /= 4
    if request.param == "incomplete":
        doc |= {"complete": False, "verdicts": []}
    (folder / "record.json").write_text(json.dumps(doc))
    (folder / "record.sha256").unlink(missing_ok=True)
    rechain(folder)
    return folder


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["report", "{}"], Exit.FAILED),
        (["report", "{}", "--markdown"], Exit.FAILED),
        (["report", "{}", "--csv"], Exit.FAILED),
        (["verify", "{}"], Exit.FAILED),
        (["rules", "suites/thresholds.toml", "{}"], Exit.FAILED),
        (["compare", "{}", "{sample}"], Exit.FAILED),
        (["compare-hardware", "{}", "{sample}"], Exit.FAILED),
        (["export", "{}", "--to", "{tmp}/out.csv"], Exit.FAILED),
        (["ingest", "{}", "--results", "{tmp}/results"], Exit.USAGE),
        (["baseline", "set", "{}", "--references", "{tmp}/references"], Exit.USAGE),
        (["handover", "{}", "--to", "{tmp}/out"], Exit.ERROR),
    ],
)
def test_no_reader_makes_a_success_of_it(
    forged: Path, sample: Path, tmp_path: Path, words: list[str], status: Exit,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    filled = [w.format(forged, sample=sample, tmp=tmp_path) for w in words]
    assert main(filled) in (status, Exit.ERROR), capsys.readouterr()
    assert not list((tmp_path / "results").glob("nights/*")), "nothing of it lasts"
    assert not (tmp_path / "references").exists()
