"""A trace without the events of its device has no budget; the error says what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.base.errors import ScaleproofError
from harness.interface.cli.main import main
from tests.analysis.timeline.writing import event, step, write

DEVICE = [{"id": 0, "name": "NVIDIA A100"}]


def steps(runtime: str = "cudaLaunchKernel", *, kernels: bool = True) -> list[dict[str, Any]]:
    """Return four steps in kineto's order: the host's events first, then the device's."""
    host, device = [], []
    for k in range(4):
        at = 10_000 * k
        host += [
            step(k, at, at + 9_900),
            event("aten::mm", at + 1_000, at + 3_000),
            event(runtime, at + 1_500, at + 1_600, "cuda_runtime", correlation=k + 1),
        ]
        device.append(
            event("gemm", at + 2_000, at + 8_000, "kernel", 7, 0, correlation=k + 1, stream=7)
        )
    return [*host, *(device if kernels else [])]


def refused(path: Path) -> str:
    with pytest.raises(ScaleproofError) as error:
        sorted_lanes(read(path))
    assert main(["report", "timeline", str(path)]) == 4, "the command must end with an error"
    return str(error.value)


@pytest.mark.parametrize(
    "runtime", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipModuleLaunchKernel", "cudaGraphLaunch"]
)
def test_launches_without_kernels_are_refused(tmp_path: Path, runtime: str) -> None:
    words = refused(write(tmp_path / "t.json", steps(runtime, kernels=False)))
    assert "4 kernel launches have no kernel" in words
    assert sorted_lanes(read(write(tmp_path / "whole.json", steps(runtime)))).device == "cuda"


@pytest.mark.parametrize("share", [0.95, 0.6, 0.35])
def test_a_truncated_trace_of_a_device_is_refused(tmp_path: Path, share: float) -> None:
    """Kineto writes the host's events first, so truncation removes the device's."""
    whole = write(tmp_path / "whole.json", steps())
    text = whole.read_text()
    document = json.loads(text)
    text = json.dumps({"deviceProperties": DEVICE, **document}, indent=1)
    cut = tmp_path / "cut.json"
    cut.write_text(text[: int(share * len(text))])
    words = refused(cut)
    assert "the file ends in the middle of its events" in words
    assert "no kernel" in words or "no row is of NVIDIA A100" in words


def test_device_operators_without_kernels_are_refused(tmp_path: Path) -> None:
    events = [*steps(kernels=False), event("aten::cudnn_convolution", 5_000, 6_000)]
    events = [e for e in events if e["cat"] != "cuda_runtime"]
    assert "aten::cudnn_convolution ran on a device" in refused(write(tmp_path / "t.json", events))


def test_a_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    calls = [event("cuMemAlloc_v2", 1_000 * k, 1_000 * k + 500, "") for k in range(20)]
    assert "no operator and no kernel" in refused(write(tmp_path / "t.json", calls))


def test_a_cpu_trace_is_accepted_on_a_host_with_a_gpu(tmp_path: Path) -> None:
    """If the header names a device, this becomes a caveat and not an error."""
    events = [e for e in steps(kernels=False) if e["cat"] != "cuda_runtime"]
    path = write(tmp_path / "t.json", events)
    assert sorted_lanes(read(path)).device == "cpu"
    document = {"deviceProperties": DEVICE, **json.loads(path.read_text())}
    path.write_text(json.dumps(document, indent=1))
    lane = sorted_lanes(read(path))
    assert lane.device == "cpu" and any("NVIDIA A100" in note for note in lane.unsure)
