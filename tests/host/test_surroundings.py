"""Limits of the memory are read from control groups of both versions, and from the shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.host.surroundings import memory_limit


@pytest.mark.parametrize(
    ("line", "file", "says", "limit"),
    [
        ("0::/user/job", "user/job/memory.max", "150000000", 150_000_000),
        ("0::/user/job", "user/memory.max", "150000000", 150_000_000),
        ("0::/user/job", "user/job/memory.max", "max", None),
        ("4:memory:/job", "memory/job/memory.limit_in_bytes", "150000000", 150_000_000),
        ("4:memory:/job", "memory/job/memory.limit_in_bytes", "9223372036854771712", None),
        ("3:cpu,cpuacct:/job", "job/memory.max", "150000000", None),
    ],
)
def test_the_memory_limit_of_a_control_group(
    line: str, file: str, says: str, limit: int | None, tmp_path: Path
) -> None:
    (tmp_path / "self").write_text(line + "\n")
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(says + "\n")
    assert memory_limit(tmp_path, tmp_path / "self") == limit


def test_limits_of_the_shell_are_named() -> None:
    program = "from harness.host.surroundings import surroundings; print(surroundings())"
    line = f"ulimit -t 60; ulimit -f 100000; {sys.executable} -c '{program}'"
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    assert "the CPU time (ulimit -t), the file size (ulimit -f)" in said
