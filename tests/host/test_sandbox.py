"""In a sandbox the kernel refuses every write outside the writable folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from harness.host import sandbox
work, out, data, user = sys.argv[1:]
print(sandbox.enter([Path(work)], [Path(work, "data"), Path(out)]))
os.chdir(work)
target = f"{out}/best.pt"
exec(os.environ["WRITE"])
print(os.getuid() == int(user))
"""
#: Ways to write that no audit event of Python reports, and two that it does.
WRITES = {
    "open": "open(target, 'w')",
    "remove": "os.remove(target)",
    "folder descriptor": "os.open('best.pt', os.O_WRONLY, dir_fd=os.open(out, os.O_RDONLY))",
    "database": "import sqlite3; sqlite3.connect(f'{out}/new.db').execute('create table t (a)')",
    "native": "import torch; torch.from_file(target, shared=True, size=8, dtype=torch.uint8).zero_()",
    "program": "subprocess.run(['rm', target], check=True)",
    "hard link": "os.link(target, 'mine.pt'); open('mine.pt', 'w')",
    "shared data": "open('data/rows', 'w')",
}


def run(tmp_path: Path, write: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    work, out = tmp_path / "my work", tmp_path / "out"
    (work / "data").mkdir(parents=True)
    out.mkdir()
    (work / "data" / "rows").write_text("precious")
    (out / "best.pt").write_text("precious")
    words = [sys.executable, "-c", PROGRAM, *map(str, (work, out, work / "data", os.getuid()))]
    environment = {**os.environ, "WRITE": write}
    return subprocess.run(words, capture_output=True, text=True, env=environment), out


@pytest.mark.parametrize("write", WRITES)
def test_the_kernel_refuses_a_write_outside(tmp_path: Path, write: str) -> None:
    done, out = run(tmp_path, WRITES[write])
    if done.stdout.startswith("False"):
        pytest.skip("this kernel lets no user have a namespace of their own")
    assert done.returncode, done.stdout
    assert [path.name for path in out.iterdir()] == ["best.pt"]
    assert (out / "best.pt").read_text() == "precious"
    assert (tmp_path / "my work/data/rows").read_text() == "precious"


def test_the_writable_folder_and_the_user_are_kept(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "open('own', 'w').write(open(target).read()); open('/dev/null', 'w')")
    if done.stdout.startswith("False"):
        pytest.skip("this kernel lets no user have a namespace of their own")
    assert done.stdout.splitlines() == ["True", "True"], done.stderr
    assert (tmp_path / "my work/own").read_text() == "precious"
    (tmp_path / "out" / "best.pt").write_text("by its owner")
