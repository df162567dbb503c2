"""Shared-memory files and temporary folders that killed processes leave behind are removed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.host import leftovers


def test_only_old_unmapped_files_of_nccl_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "SHM", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    names = ("nccl-left", "nccl-used", "nccl-young", "other-left")
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 4096)
        if name != "nccl-young":
            os.utime(tmp_path / name, (0, 0))
    with (tmp_path / "nccl-used").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftovers.remove() == 1
        assert {p.name for p in tmp_path.iterdir()} == {"nccl-used", "nccl-young", "other-left"}
    assert leftovers.remove() == 1 and not (tmp_path / "nccl-used").exists()


def test_only_old_folders_that_no_process_holds_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "SHM", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = leftovers.HOST
    names = (
        f"agent-{here}-left", f"agent-{here}-held", f"agent-{here}-young", f"{here}01234567-0",
        "agent-other0-left", "of-a-user",
    )  # fmt: skip
    for name in names:
        folder = tmp_path / f"scaleproof-{name}"
        (folder / "part").mkdir(parents=True)
        if not name.endswith("young"):
            os.utime(folder, (0, 0))
    (tmp_path / f"scaleproof-agent-{here}-link").symlink_to(tmp_path / "scaleproof-of-a-user")
    program = "import sys; from pathlib import Path; from harness.host import leftovers\n"
    program += "leftovers.hold(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program, str(tmp_path / f"scaleproof-agent-{here}-held")]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline()
    assert leftovers.remove() == 2
    left = {path.name.removeprefix("scaleproof-") for path in tmp_path.iterdir()}
    kept = {f"agent-{here}-{name}" for name in ("held", "young", "link")}
    assert left == kept | {"agent-other0-left", "of-a-user"}
    holder.kill()
    holder.communicate()
    assert leftovers.remove() == 1 and not (tmp_path / f"scaleproof-agent-{here}-held").exists()
