"""Spans reach an NVTX tool, the profiler's trace, and the harness's log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SPEAK = """
from harness.training.observe.spans import span
from harness.record.spans import Category
with span("step", payload=3):
    with span("batch", Category.DATA, 7):
        pass
with span("step", payload=4):
    pass
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled NVTX tool."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here")
    library = tmp_path_factory.mktemp("nvtx") / "injection.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(HERE / "injection.c")]
    subprocess.run(command, check=True)
    return library


def test_an_nvtx_tool_receives_domain_category_name_and_payload(tool: Path, tmp_path: Path) -> None:
    heard = tmp_path / "heard.txt"
    env = {**os.environ, "NVTX_INJECTION64_PATH": str(tool), "NVTX_HEARD": str(heard)}
    subprocess.run([sys.executable, "-c", SPEAK], check=True, env=env)
    assert heard.read_text().splitlines() == [
        "push scaleproof step step 3",
        "push scaleproof data batch 7",
        "pop scaleproof",
        "pop scaleproof",
        "push scaleproof step step 4",
        "pop scaleproof",
    ]


def test_spans_of_a_profiled_window_are_in_the_trace_and_in_the_log(tmp_path: Path) -> None:
    """This runs in a separate process, because a profiler leaves threads behind."""
    script = f"""
import json, torch
from pathlib import Path
from harness.training.accelerator import Accelerator
from harness.training.observe.profiling import Profiler
from harness.training.observe.spans import span
from harness.record.spans import Category
out = Path({str(tmp_path)!r})
profiler = Profiler(steps=4, active=2, accelerator=Accelerator(torch.device("cpu")))
for step in range(4):
    with span("batch", Category.DATA, step):
        torch.ones(3).sum()
    profiler.step()
profiler.stop()
digest = profiler.export(lambda suffix: out / f"rank0.{{suffix}}")
import hashlib
assert digest == hashlib.sha256((out / "rank0.trace.json.gz").read_bytes()).hexdigest()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    import json

    from harness.analysis.timeline.reader import read
    from harness.analysis.timeline.sorting import sorted_lanes
    from harness.record import Category
    from harness.record.spans import category_of

    log = json.loads((tmp_path / "rank0.spans.json").read_text())
    assert [(r["name"], r["category"], r["payload"]) for r in log] == [
        ("batch", "data", 2), ("batch", "data", 3),
    ]  # fmt: skip
    trace = read(tmp_path / "rank0.trace.json.gz")
    rows = [i for i, n in enumerate(trace.name) if category_of(trace.names[n]) is Category.DATA]
    assert len(rows) == 2 and len(sorted_lanes(trace).edges) == 3
    # Both use the same clock, so the log's span encloses the trace's range.
    for row, logged in zip(rows, log, strict=True):
        assert logged["start_ns"] <= trace.end[row] and trace.start[row] <= logged["end_ns"]
