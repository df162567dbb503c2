"""Files of other programs are refused by name, and rows of an Ascend NPU are read."""

from __future__ import annotations

import bz2
import json
import lzma
import sqlite3
import zipfile
from pathlib import Path

import pytest

from harness.analysis.timeline.close import close
from harness.analysis.timeline.kernel_names import short
from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.base.errors import ScaleproofError
from harness.interface.cli.main import main
from harness.record import Term

RECORDED = Path(__file__).parent / "recorded"


def written(path: Path, kind: str) -> None:
    """Write a file of another format, by the program that writes such files where one exists."""
    text = json.dumps({"traceEvents": [{"ph": "b", "name": "span", "ts": 1, "id": 1}]})
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("trace.json", text)
    elif kind == "bzip2":
        path.write_bytes(bz2.compress(text.encode()))
    elif kind == "xz":
        path.write_bytes(lzma.compress(text.encode()))
    elif kind == "SQLite":
        with sqlite3.connect(path) as database:
            database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start integer)")
    elif kind == "UTF-16":
        path.write_text(text, encoding="utf-16")
    elif kind == "asynchronous":
        path.write_text(text)
    elif kind == "speedscope":
        path.write_text('{"$schema": "https://www.speedscope.app/file-format-schema.json"}')
    else:
        path.write_text('{"step": 1}\n{"step": 2}\n')


@pytest.mark.parametrize(
    "kind",
    ["zip", "bzip2", "xz", "SQLite", "UTF-16", "asynchronous", "speedscope", "JSON object a line"],
)
def test_another_format_is_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "trace"
    written(path, kind)
    assert main(["report", "timeline", str(path)]) == 4
    assert kind in capsys.readouterr().err


def test_an_unknown_format_has_the_general_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(ScaleproofError, match="no timed events"):
        read(path)


def test_the_device_of_an_ascend_npu_is_read() -> None:
    """Its own row "Overlap Analysis" states 1.788 ms of computing in a step of 14.09 ms."""
    trace = read(RECORDED / "ascend_npu.json.gz")
    budget = close([sorted_lanes(trace, 0)]).budget
    assert budget.device == "npu"
    assert budget.mean_ns(Term.COMPUTE) / 1e6 == pytest.approx(1.788, rel=0.005)
    assert any("Ascend NPU" in sentence for sentence in budget.unsure)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#3}::operator()() const, at::detail::Array<char*,"
            " 2>>(int)",
            "unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>,"
            " at::detail::Array<char*, 3> >(int)",
            "vectorized_elementwise_kernel<CUDAFunctor_add>",
        ),
        ("void cutlass::Kernel<cutlass_80_tensorop_gemm>(Params)", "cutlass_80_tensorop_gemm"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 9>(float*)", "softmax_warp_forward"),
        ("ncclDevKernel_AllReduce_Sum_f32(ncclArgs)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("aten::mm", "aten::mm"),
    ],
)  # fmt: skip
def test_a_kernel_is_named_by_what_distinguishes_it(name: str, expected: str) -> None:
    assert short(name) == expected
