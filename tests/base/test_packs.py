"""The files of hundreds of ranks are packed into a few archives, and every byte is preserved."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.analysis.timeline.reader import read
from harness.base import packs
from harness.base.errors import ScaleproofError
from harness.base.packs import is_there, opened, pack, size
from harness.record import archive

RANKS = packs.MANY + 1


def trace(rank: int) -> bytes:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"aten::op{rank}",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 2,
    }
    return gzip.compress(json.dumps({"traceEvents": [event, event]}).encode(), mtime=0)


@pytest.fixture
def launch(tmp_path: Path) -> Path:
    where = tmp_path / "launches" / "a-1"
    where.mkdir(parents=True)
    for rank in range(RANKS):
        (where / f"rank{rank}.npz").write_bytes(b"samples %d" % rank)
        (where / f"rank{rank}.json").write_text("{}")
        (where / f"rank{rank}.trace.json.gz").write_bytes(trace(rank))
        (where / f"rank{rank}.spans.json").write_text(f"[{rank}]")
    (where / "gpus.json").write_text("[]")
    return where


def test_files_of_many_ranks_are_packed_into_two_archives(launch: Path) -> None:
    before = {
        p.name: p.read_bytes() for p in launch.iterdir() if p.suffix != ".json" or "spans" in p.name
    }
    pack(launch, range(RANKS))
    assert {p.name for p in launch.iterdir()} == {"gpus.json", "ranks.zip", "traces.zip"}
    for name, body in before.items():
        path = launch / name
        assert is_there(path) and size(path) == len(body)
        with opened(path) as handle:
            assert handle.read() == body
            handle.seek(0)
            assert handle.read(2) == body[:2], (
                "a packed file must support seek, because readers peek at its first bytes"
            )


def test_a_packed_trace_reads_like_the_unpacked_one(launch: Path) -> None:
    alone = read(launch / "rank3.trace.json.gz")
    pack(launch, range(RANKS))
    together = read(launch / "rank3.trace.json.gz")
    assert len(together.names) == len(alone.names) > 0 and "aten::op3" in together.names


def test_files_of_few_ranks_are_not_packed(launch: Path) -> None:
    pack(launch, range(packs.MANY))
    assert (launch / "rank0.npz").is_file() and not list(launch.glob("*.zip"))


def test_a_file_missing_from_the_pack_raises_os_error(launch: Path) -> None:
    pack(launch, range(RANKS))
    for name in ("rank99.npz", "rank99.trace.json.gz", "rank0.log"):
        assert not is_there(launch / name)
        with pytest.raises(OSError):
            opened(launch / name)
        with pytest.raises(OSError):
            size(launch / name)


def test_a_damaged_pack_is_one_clear_error(launch: Path) -> None:
    pack(launch, range(RANKS))
    (launch / "traces.zip").write_bytes(b"no archive")
    assert not is_there(launch / "rank0.trace.json.gz")
    with pytest.raises(ScaleproofError, match="cannot be read"):
        read(launch / "rank0.trace.json.gz")


def test_an_interrupt_while_packing_loses_no_file(
    launch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack appears as a whole or not at all, and the single files are deleted only after it
    exists.
    """

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(packs.os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(launch, range(RANKS))
    assert all(is_there(launch / f"rank{r}.npz") for r in range(RANKS))
    monkeypatch.undo()
    pack(launch, range(RANKS))
    assert not list(launch.glob("*.part")) and is_there(launch / "rank0.npz")


def test_archives_leave_packed_traces_out_unless_asked(launch: Path) -> None:
    pack(launch, range(RANKS))
    folder = launch.parents[1]
    assert set(archive.files_of(folder, traces=False)) == {"launches/a-1/ranks.zip"}
    assert "launches/a-1/traces.zip" in archive.files_of(folder, traces=True)
