"""What the offline half costs: reading, judging and rendering the tracked sample."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.verify import verify
from harness.interface.report.page.page import render
from harness.record.store import load, save

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "results" / "samples" / "ddp-nano"


def test_load(benchmark: Any) -> None:
    assert benchmark(load, SAMPLE).complete


def test_save(benchmark: Any, tmp_path: Path) -> None:
    benchmark(save, load(SAMPLE), tmp_path)


def test_judge(benchmark: Any) -> None:
    assert benchmark(verdicts, load(SAMPLE))


def test_verify(benchmark: Any) -> None:
    assert not benchmark(verify, load(SAMPLE), SAMPLE).differences


def test_page(benchmark: Any) -> None:
    assert "<svg" in benchmark(render, load(SAMPLE))


def test_list(benchmark: Any) -> None:
    """The whole process: interpreter, imports, folder scan."""
    command = [sys.executable, "-m", "harness", "list"]

    def run() -> int:
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode

    assert benchmark.pedantic(run, rounds=5, warmup_rounds=1) == 0
