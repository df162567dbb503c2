"""The chain stays intact if writes fail, and no link is added after a lost one."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from harness.base.files import FullDiskError, UnwrittenError
from harness.record import chain
from harness.record.chain import Chain, Kind

BODY = {"a": "x" * 5000}


def begun(folder: Path) -> Chain:
    made = Chain(folder)
    made.add(Kind.LAUNCH, {"n": 1})
    return made


def unwritable(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize("left", [0, 1, 40, 3000])
def test_a_partial_write_is_rolled_back(tmp_path: Path, left: int) -> None:
    """A limit on the file size makes the kernel write ``left`` bytes and refuse the rest."""
    made = begun(tmp_path)
    whole = (tmp_path / chain.FILE).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + left, limits[1]))
        with pytest.raises(UnwrittenError, match="the same command again"):
            made.add(Kind.LAUNCH, BODY, BODY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / chain.FILE).read_bytes() == whole
    with pytest.raises(UnwrittenError):  # The disk has space again, but the chain lacks a launch.
        made.add(Kind.STATE, {"n": 2})
    assert [link.body for link in chain.read(tmp_path)] == [{"n": 1}]


def test_only_a_run_with_a_plan_is_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(tmp_path)
    made.add(Kind.PLAN, {"hash": "x", "plan": {}})
    unwritable(errno.ENOSPC, monkeypatch)
    with pytest.raises(UnwrittenError, match="--resume"):
        made.add(Kind.LAUNCH, BODY)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_fsync_ends_the_session_and_another_can_continue(
    tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(tmp_path)
    with monkeypatch.context() as patch:
        unwritable(error, patch)
        with pytest.raises(UnwrittenError) as failed:
            made.add(Kind.LAUNCH, BODY)
    assert isinstance(failed.value, FullDiskError) is (error != errno.EIO)
    with pytest.raises(UnwrittenError):
        made.add(Kind.ENDED, {"n": 2})
    made.release()
    again = Chain(tmp_path)
    again.add(Kind.LAUNCH, {"n": 3})
    assert [link.body for link in chain.read(tmp_path)] == [{"n": 1}, {"n": 3}]


def test_the_chain_is_readable_if_a_rollback_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        unwritable(errno.EIO, patch)
        patch.setattr(os, "truncate", refuse)
        with pytest.raises(UnwrittenError):
            made.add(Kind.LAUNCH, BODY)
    assert [link.number for link in chain.read(tmp_path)] == [0, 1]


def test_a_chain_that_ended_without_its_record_can_be_continued(copy: Path) -> None:
    """The process was killed, or the disk was full, between the end and the record."""
    before = chain.read(copy)
    writer = chain.Chain(copy)
    writer.reopen()
    assert chain.read(copy) == before[:-1]
    writer.reopen()
    assert chain.read(copy) == before[:-1], "only an end is removed"
    writer.add(chain.Kind.SITTING, {"machine": {}, "cut": []})
    assert [link.kind for link in chain.read(copy)][-1] == "sitting"
