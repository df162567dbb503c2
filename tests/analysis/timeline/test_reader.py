"""The reader accepts what profilers write, and reports what it could not read."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline import reader
from harness.analysis.timeline.reader import read
from harness.base.errors import ScaleproofError
from tests.analysis.timeline.writing import BASE_NS, event, step, write

EVENTS: list[dict[str, Any]] = [
    step(3, 1_000, 9_001),
    event("aten::mm", 2_003, 4_507),
    event("aten::add", 2_503, 2_999),
    event("gloo:all_reduce", 3_001, 6_002, "user_annotation", 7, **{"Input Dims": [[64, 2]]}),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2.0, "args": {"Total Allocated": 96}},
    event("frame", 1_500, 1_600, "python_function"),
]


@pytest.mark.parametrize("layout", ["kineto", "older", "compact", "list"])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_layout_is_read_into_the_same_columns(
    tmp_path: Path, layout: str, suffix: str
) -> None:
    trace = read(write(tmp_path / f"t{suffix}", EVENTS, rank=1, world_size=2, layout=layout))
    base = 0 if layout == "list" else BASE_NS
    assert [trace.names[i] for i in trace.name] == [
        "ProfilerStep#3", "aten::mm", "aten::add", "gloo:all_reduce",
    ]  # fmt: skip
    assert (trace.start - base).tolist() == [1_000, 2_003, 2_503, 3_001]
    assert (trace.end - base).tolist() == [9_001, 4_507, 2_999, 6_002]
    assert (trace.rank, trace.world_size) == ((-1, -1) if layout == "list" else (1, 2))
    assert (trace.allocated - [base, 0]).tolist() == [[2_000, 96]]
    assert list(trace.extra) == [3] and trace.partial == ""


def test_blocks_are_cut_between_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with blocks smaller than an event, and events with lists of objects among their
    arguments.
    """
    many = [
        event(f"op{i}", 1_000 * i, 1_000 * i + 500, nested=[{"a": 1}, {"b": 2}], text='},\n  {"x')
        for i in range(200)
    ]
    whole = read(write(tmp_path / "whole.json", many))
    for size in (64, 999, 4096):
        monkeypatch.setattr(reader, "BLOCK_BYTES", size)
        for layout in ("kineto", "older", "compact"):
            cut = read(write(tmp_path / "cut.json", many, layout=layout))
            assert cut.start.tolist() == whole.start.tolist() and cut.partial == ""


def test_unusual_ids_are_accepted(tmp_path: Path) -> None:
    odd = [
        event("a", 0, 10, tid="stream 7", pid="Spans"),
        event("k", 10, 20, "kernel", correlation=2**64 - 1, stream=7),
        event("r", 5, 6, "cuda_runtime", correlation=12),
    ]
    trace = read(write(tmp_path / "t.json", odd))
    assert len(trace.start) == 3 and trace.partial == ""
    assert trace.correlation.tolist() == [-1, 12, 2**63 - 1]


def test_malformed_text_loses_only_its_event(tmp_path: Path) -> None:
    """Invalid UTF-8 and unescaped quotes are repaired; events that cannot be repaired are counted."""
    path = write(tmp_path / "t.json", EVENTS)
    raw = path.read_bytes()
    bad = raw.replace(b"aten::mm", b"aten::m\xff\xfe")
    bad = bad.replace(b'"aten::add"', b'"aten::"add" (x)"')
    path.write_bytes(bad)
    trace = read(path)
    assert {"aten::m\ufffd\ufffd", 'aten::"add" (x)'} <= set(trace.names) and trace.partial == ""
    path.write_bytes(bad.replace(b'"ts": 2.003', b'"ts": what'))
    assert read(path).partial == "1 events could not be read"


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_truncated_file_is_read_up_to_its_end(tmp_path: Path, suffix: str) -> None:
    path = write(
        tmp_path / f"t{suffix}", [event(f"op{i}", i * 10, i * 10 + 5) for i in range(5000)]
    )
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    trace = read(path)
    assert 0 < len(trace.start) < 5000
    short = "the compressed file is cut short" if suffix == ".json.gz" else "in the middle"
    assert short in trace.partial


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no timed events"),
        (b"hello", "no timed events"),
        (b'{"traceEvents": []}', "no timed events"),
        (b'{"record": 1}', "no timed events"),
        (gzip.compress(b'{"traceEvents": [{"ph"', mtime=0)[:-4], "no timed events"),
    ],
)
def test_a_file_that_is_not_a_trace_is_one_clear_error(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(ScaleproofError, match=says) as error:
        read(path)
    assert str(path) in str(error.value) and "scaleproof report timeline" in str(error.value)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ScaleproofError, match="cannot be read: No such file"):
        read(tmp_path / "no.json")


def test_a_file_without_events_is_not_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "EVENT_BYTES", 1 << 20)
    (tmp_path / "t.json").write_text("{" + '"a": 1, ' * (1 << 18))
    blocks = reader.Blocks(tmp_path / "t.json")
    assert list(blocks) == [] and "no events in its first 1 MB" in blocks.broken
