"""Files of NCCL Inspector give the transfer and the waiting of a running job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.inspector import is_inspected, read
from harness.base.errors import ScaleproofError
from harness.interface.cli.main import main

#: The transfer of each collective and the additional time of each rank, in us.
TRANSFER_US = 400
LATE_US = {0: 0, 1: 250, 2: 250, 3: 100}


def write(folder: Path, form: str, *, drop: int = -1, ranks: int = 4, total: int = 10) -> Path:
    """Write the files of a job in one of three forms of the format."""
    folder.mkdir()
    for rank in range(ranks):
        header: dict[str, Any] = {"id": "0xabc", "rank": rank, "n_ranks": 4, "nnodes": 1}
        about = {"inspector_output_format_version": "v4.0", "hostname": "a", "pid": 100 + rank}
        lines: list[dict[str, Any]] = []
        if form == "marker":
            stats = {"coll_dropped_total": int(rank == drop), "coll_dropped_since_last_dump": 0}
            lines.append({"header": header, "metadata": about, "dump_stats": stats})
        for number in range(total):
            if rank == drop and number == 4:
                continue
            perf = {
                "coll": "AllReduce" if number % 2 else "AllGather", "coll_sn": number // 2,
                "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": TRANSFER_US + LATE_US[rank],
                "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.5,
            }  # fmt: skip
            whole = {"header": header, "metadata": about, "coll_perf": perf}
            flat = {**header, "pid": 100 + rank, "coll_perf": perf}
            lines.append({"nested": whole, "flat": flat, "marker": {"coll_perf": perf}}[form])
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"host-{rank}.jsonl").write_text(text + '{"coll_perf": {"coll": "AllRe')
    return folder


@pytest.mark.parametrize("form", ["nested", "flat", "marker"])
def test_transfer_and_waiting_are_divided_without_clocks(tmp_path: Path, form: str) -> None:
    job = read([write(tmp_path / "job", form)])
    assert [(kind.kind, kind.count) for kind in job.kinds] == [("AllGather", 5), ("AllReduce", 5)]
    for kind in job.kinds:
        assert kind.transfer_s == pytest.approx(5 * TRANSFER_US / 1e6)
        assert kind.wait_s == pytest.approx(5 * sum(LATE_US.values()) / 4 / 1e6)
        assert kind.payload_bytes == 5 << 20
    assert job.waits_s == pytest.approx({rank: 10 * us / 1e6 for rank, us in LATE_US.items()})
    assert (job.incomplete, job.dropped) == (0, 0)


@pytest.mark.parametrize("form", ["nested", "marker"])
def test_lost_records_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    folder = write(tmp_path / "job", form, drop=2)
    job = read([folder])
    assert (job.incomplete, job.dropped) == (1, 1)
    assert main(["report", "timeline", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "rank 0 waits least" in shown and "1 records were lost" in shown


def test_a_missing_rank_leaves_no_whole_collective(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", "nested", ranks=3)
    assert is_inspected(folder)
    with pytest.raises(ScaleproofError, match="recorded by all of its ranks"):
        read([folder])
