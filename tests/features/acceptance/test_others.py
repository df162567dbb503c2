"""Results of other tools are recognized by their format, printed without a verdict, and never break
the document.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.features.acceptance.others import read, tools
from harness.interface.cli.main import main

EXAMPLES = Path(__file__).parent / "others"
KNOWN = {
    "nccl-tests.json": ("nccl-tests", ("average bus bandwidth", "312.1 GB/s")),
    "nccl-tests.txt": ("nccl-tests", ("payloads", "2, 1048576 to 4194304 B")),
    "dcgm.json": ("DCGM", ("software", "Fail")),
    "cmax.txt": ("cmax (ClusterMAX)", ("checks", "1 failed, 2 warnings, 31 passed, 5 skipped")),
    "superbench.jsonl": ("SuperBench", ("node-a", "1 of 2 succeeded; failed: gemm-flops")),
    "reframe.json": ("ReFrame", ("generic:default:rate", "12.5 GB/s, reference 12")),
    "mlperf-sysinfo.json": ("mlperf-sysinfo", ("nodes described", "1 of 2: A PARTIAL CAPTURE")),
}


@pytest.mark.parametrize("name", KNOWN)
def test_each_result_is_read_by_the_reader_of_its_tool(name: str) -> None:
    tool, line = KNOWN[name]
    result = read(EXAMPLES / name)
    assert result.tool == tool
    assert line in result.lines


def test_every_reader_has_an_example() -> None:
    assert sorted(tools()) == sorted({tool for tool, _ in KNOWN.values()})


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '"x"', "{", "1 failed", "\x00", '{"runs": 1}']
)
def test_a_file_of_no_known_tool_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "strange"
    path.write_text(text)
    with pytest.raises(SpecError, match="format of any known tool"):
        read(path)


def test_results_of_other_tools_are_printed_and_change_no_status(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["accept", "report", str(sample), "--to", str(tmp_path / "to"), "--json"]
    alone = main(words)
    status = json.loads(capsys.readouterr().out)["status"]
    beside = [word for name in KNOWN for word in ("--beside", str(EXAMPLES / name))]
    assert main([*words, *beside]) == alone
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == status
    assert [r["file"] for r in document["others"]] == list(KNOWN)
    page = (tmp_path / "to" / "handover.html").read_text()
    section = page.partition('id="others"')[2].partition("<h2")[0]
    assert "not judged here" in section and "312.1 GB/s" in section
    assert all(r["sha256"] in section for r in document["others"])
