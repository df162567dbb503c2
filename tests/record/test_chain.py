"""The chain under a disk that refuses: what is there stays whole, and nothing follows a gap."""

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
def test_a_write_that_the_kernel_cuts_short_is_taken_back(tmp_path: Path, left: int) -> None:
    """By a limit on the size of files: the kernel writes ``left`` bytes and refuses the rest."""
    made = begun(tmp_path)
    whole = (tmp_path / chain.FILE).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + left, limits[1]))
        with pytest.raises(UnwrittenError, match="--resume"):
            made.add(Kind.LAUNCH, BODY, BODY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / chain.FILE).read_bytes() == whole
    with pytest.raises(UnwrittenError):  # there is room now, but a launch is missing
        made.add(Kind.STATE, {"n": 2})
    assert [link.body for link in chain.read(tmp_path)] == [{"n": 1}]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_sync_that_fails_ends_the_sitting_and_another_goes_on(
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


def test_where_nothing_can_be_taken_back_the_chain_is_still_readable(
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
