"""Shared-memory files that killed NCCL ranks leave behind are removed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from harness.host import doctor


def test_only_old_unmapped_files_of_nccl_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SHM", tmp_path)
    names = ("nccl-left", "nccl-used", "nccl-young", "other-left")
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 4096)
        if name != "nccl-young":
            os.utime(tmp_path / name, (0, 0))
    with (tmp_path / "nccl-used").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert doctor.remove_leftovers() == 1
        assert {p.name for p in tmp_path.iterdir()} == {"nccl-used", "nccl-young", "other-left"}
    assert doctor.remove_leftovers() == 1 and not (tmp_path / "nccl-used").exists()
