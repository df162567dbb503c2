"""``scripts/rows``: each row runs a program that can fail, and all rows end as expected."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "rows"


def loaded() -> Any:
    loader = importlib.machinery.SourceFileLoader("rows", str(SCRIPT))
    spec = importlib.util.spec_from_loader("rows", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rows"] = module  # dataclasses look up the module of their annotations
    loader.exec_module(module)
    return module


ROWS = loaded().ROWS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_can_fail(row: Any) -> None:
    """It expects output of a program of this project, not text of a documentation page."""
    words = shlex.split(row.command)
    assert words[0] in ("scaleproof", "python"), "the documentation is no evidence"
    assert words[:2] != ["scaleproof", "check", "thresholds"], "a list of rules measures nothing"
    assert row.expects, "a command that prints nothing shows nothing"
    for word in words[1:]:
        path = word.partition("::")[0]
        if path.startswith(("tests/", "suites/", "results/", "examples/")):
            assert (ROOT / path).exists(), f"{path} has moved"


@pytest.mark.full
def test_all_rows_end_as_expected() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and f"{len(ROWS)} rows: " in done.stdout, done.stdout
    assert " 0 NO" in done.stdout
