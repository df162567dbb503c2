"""The screen of a real main job: golden at every width, and what the README shows of it.

``main-job.json.gz`` is the record of one ``pytest suites/``. GOLDEN_SCREENS=write accepts new
screens after looking at them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from harness.base.documents import from_doc
from harness.interface.report import tables
from harness.record import SCHEMA, RunRecord
from harness.record.upgrade import upgrade

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(scope="module")
def main_job() -> RunRecord:
    doc = json.loads(gzip.decompress((GOLDEN / "main-job.json.gz").read_bytes()))
    return from_doc(RunRecord, upgrade(doc, SCHEMA), "record")


def screen(run: RunRecord, columns: int) -> str:
    folder = Path("results/runs") / run.machine.hardware_class / run.run
    return (
        "\n".join(
            tables.summary(run, folder, "pytest suites/", columns, page=folder / "report.html")
        )
        + "\n"
    )


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_the_screen_of_a_main_job(main_job: RunRecord, columns: int) -> None:
    seen, golden = screen(main_job, columns), GOLDEN / f"main-job-{columns}.txt"
    if os.environ.get("GOLDEN_SCREENS") == "write":
        golden.write_text(seen)
    assert seen == golden.read_text()
    whole = (" rerun", " page")  # commands are not broken: they are to be copied
    assert all(len(line) <= columns for line in seen.splitlines() if not line.startswith(whole))


def test_the_readme_shows_lines_of_that_screen(main_job: RunRecord) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"```text\n\$ pytest suites/.*?\n(.*?)```", readme, re.S)
    assert shown is not None
    lines = screen(main_job, 80).splitlines()
    for line in shown[1].splitlines():
        assert line in lines, line
