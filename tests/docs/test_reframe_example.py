"""The example for ReFrame, run by ReFrame: its outcome equals that of the verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.record.store import load

ROOT = Path(__file__).parents[2]
REFRAME = shutil.which("reframe")
RULE = """
[[rule]]
name = "sent"
case = "ddp/mlp-nano/weak"
world = 2
metric = "sent_bytes"
at_least = {bound}
unit = "B"
source = "requirement"
"""


@pytest.mark.full
@pytest.mark.skipif(REFRAME is None, reason="needs reframe: pipx install ReFrame-HPC")
@pytest.mark.parametrize(("bound", "status"), [("1.0", 0), ("1e12", 1)])
def test_reframe_reports_the_outcome_of_the_verdict(
    bound: str, status: int, tmp_path: Path
) -> None:
    """The rule is about bytes, which do not depend on the machine's load."""
    rules = tmp_path / "rules.toml"
    rules.write_text(RULE.format(bound=bound))
    words = [str(REFRAME), "-c", str(ROOT / "examples/reframe/scaleproof_check.py"), "-r"]
    words += ["--report-file=report.json", "--keep-stage-files", "-S", f"rules={rules}"]
    words += ["-S", "case=ddp/mlp-nano/weak", "-S", "ranks=--cpus=2"]
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    quick = {"SCALEPROOF_NO_FABRIC": "1", "SCALEPROOF_NO_TIMELINE": "1", "PATH": here}
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, **quick},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-2000:]
    (folder,) = tmp_path.glob("**/stage/**/results/runs/*/*")
    run = load(folder)
    if status:
        assert "FAIL: " in done.stdout, "the headline is the reason"
        return
    (session,) = json.loads((tmp_path / "report.json").read_text())["runs"]
    (case,) = session["testcases"]
    values_told = {name.split(":")[-1]: values[0] for name, values in case["perfvalues"].items()}
    for v in run.verdicts:
        if v.value is not None:
            assert v.value in [pytest.approx(value) for value in values_told.values()], (
                v.case,
                v.metric,
            )
